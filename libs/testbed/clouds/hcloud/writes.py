"""Answers to requests that change something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from libs.testbed.clouds.hcloud.actions import Effect
from libs.testbed.clouds.hcloud.balancers import BALANCER_COMMANDS, create_balancer
from libs.testbed.clouds.hcloud.bodies import Body, Name, read_body
from libs.testbed.clouds.hcloud.errors import Refusal
from libs.testbed.clouds.hcloud.networks import NETWORK_COMMANDS
from libs.testbed.clouds.hcloud.objects import Document, make_certificate
from libs.testbed.clouds.hcloud.project import SINGULARS, SimProject
from libs.testbed.clouds.http_faults import Answer

_COMMANDS: Final[Mapping[str, Mapping[str, Callable[[SimProject, Document, Document], Effect]]]] = {
    "load_balancers": BALANCER_COMMANDS,
    "networks": NETWORK_COMMANDS,
}


class _Certificate(Body):
    name: Name
    type: Literal["uploaded", "managed"] = "uploaded"
    certificate: str | None = None
    private_key: str | None = None
    domain_names: tuple[str, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class _Update(Body):
    name: Name | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET  # they replace all labels


def answer_write(project: SimProject, method: str, path: list[str], body: bytes) -> Answer:
    """Return the answer to a request with POST, PUT or DELETE. Raises Refusal."""
    match method, path:
        case "POST", ["load_balancers"]:
            return _create_balancer(project, _read_json(body))
        case "POST", ["certificates"]:
            return _create_certificate(project, _read_json(body))
        case "PUT", ["load_balancers" | "certificates" | "networks" as kind, number]:
            return _update(project, kind, number, _read_json(body))
        case "DELETE", ["load_balancers" | "certificates" as kind, number]:
            return _delete(project, kind, number)
        case "POST", [kind, number, "actions", command] if command in _COMMANDS.get(kind, ()):
            target, sent = _find(project, kind, number), _read_json(body)
            effect = _COMMANDS[kind][command](project, target, sent)
            network = project.tables["networks"].get(sent.get("network", 0))
            action = project.start_action(command, kind, target, effect, network=network)
            return Answer(status=201, document={"action": action})
    raise Refusal("not_found", "no such path")


def _read_json(body: bytes) -> Document:
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Refusal("json_error", str(error)) from error


def _find(project: SimProject, kind: str, number: str) -> Document:
    """The object, if no action of it runs."""
    found = project.find(kind, int(number) if number.isdigit() else 0)
    project.check_free(kind, found)
    return found


def _create_balancer(project: SimProject, sent: Document) -> Answer:
    balancer = create_balancer(project, sent)
    project.add("load_balancers", balancer)
    action = project.start_action("create_load_balancer", "load_balancers", balancer, lambda: None)
    rendered = project.render("load_balancers", balancer)
    return Answer(status=201, document={"load_balancer": rendered, "action": action})


def _create_certificate(project: SimProject, sent: Document) -> Answer:
    body = read_body(sent, _Certificate)
    project.check_new("certificates", body.name, body.labels)
    is_managed = body.type == "managed"
    for field in ("domain_names",) if is_managed else ("certificate", "private_key"):
        if not getattr(body, field):
            raise Refusal("invalid_input", "is needed", field)
    certificate = make_certificate(
        project.next_id(),
        body.name,
        certificate_type=body.type,
        domain_names=body.domain_names,
        created=project.format_now(),
    )
    certificate["labels"] = dict(body.labels)
    project.add("certificates", certificate)
    action = None
    if is_managed:
        certificate["status"]["issuance"] = "pending"
        action = project.start_action(
            "create_certificate",
            "certificates",
            certificate,
            lambda: certificate["status"].update(issuance="completed"),
        )
    rendered = project.render("certificates", certificate)
    return Answer(status=201, document={"certificate": rendered, "action": action})


def _update(project: SimProject, kind: str, number: str, sent: Document) -> Answer:
    found = _find(project, kind, number)
    project.update(kind, found, msgspec.to_builtins(read_body(sent, _Update)))
    return Answer(status=200, document={SINGULARS[kind]: project.render(kind, found)})


def _delete(project: SimProject, kind: str, number: str) -> Answer:
    found = _find(project, kind, number)
    if found.get("protection", {}).get("delete"):
        raise Refusal("protected")
    if project.render(kind, found).get("used_by"):
        raise Refusal("resource_in_use", "a load balancer uses it")
    if kind == "load_balancers":

        def remove() -> None:
            if found["id"] in project.tables[kind]:  # else it was deleted in another way meanwhile
                project.remove(kind, found["id"])

        action = project.start_action("delete_load_balancer", kind, found, remove)
        return Answer(status=201, document={"action": action})
    project.remove(kind, found["id"])
    return Answer(status=204, document=None)
