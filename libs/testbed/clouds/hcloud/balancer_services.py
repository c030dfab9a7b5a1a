"""The services of a load balancer: the ports on which it listens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from libs.testbed.clouds.hcloud.actions import Effect
from libs.testbed.clouds.hcloud.bodies import Body, Port, read_body, read_field
from libs.testbed.clouds.hcloud.errors import Refusal
from libs.testbed.clouds.hcloud.objects import Document

if TYPE_CHECKING:
    from libs.testbed.clouds.hcloud.project import SimProject


class _Http(Body):
    cookie_name: str = "HCLBSTICKY"
    cookie_lifetime: int = 300
    certificates: tuple[int, ...] = ()
    redirect_http: bool = False
    sticky_sessions: bool = False
    timeout_idle: int = 60


class _CheckHttp(Body):
    domain: str | None = ""  # None sends no host header
    path: str = "/"
    response: str = ""
    status_codes: tuple[str, ...] = ("2??", "3??")
    tls: bool = False


class _Check(Body):
    port: Port
    protocol: Literal["tcp", "http"] = "tcp"
    interval: Annotated[int, Meta(ge=3, le=60)] = 15  # seconds
    timeout: Annotated[int, Meta(ge=1, le=60)] = 10
    retries: Annotated[int, Meta(ge=1, le=5)] = 3
    http: _CheckHttp | UnsetType = UNSET


class _Service(Body):
    protocol: Literal["tcp", "http", "https"]
    listen_port: Port
    destination_port: Port
    health_check: _Check
    proxyprotocol: bool = False
    http: _Http | UnsetType = UNSET


_DEFAULT_PORTS: Final[Document] = {
    "http": {"listen_port": 80, "destination_port": 80},
    "https": {"listen_port": 443, "destination_port": 80},
}


def _merge_service(before: Document, sent: Document) -> Document:
    """The service after a request that may name only some of its fields."""
    protocol = sent.get("protocol", before.get("protocol"))
    service: Document = _DEFAULT_PORTS.get(str(protocol), {}) | before | sent
    check: Document = {"port": service.get("destination_port")} | _merge_part("health_check", before, sent)
    if check.get("protocol") == "http":
        former = before.get("health_check", {})
        check["http"] = _merge_part("http", former, sent.get("health_check", {}))
    else:
        check.pop("http", None)
    service["health_check"] = check
    if protocol != "tcp":
        service["http"] = _merge_part("http", before, sent)
    elif "http" not in sent:
        service.pop("http", None)
    else:
        raise Refusal("invalid_input", "not with this protocol", "http")
    merged: Document = msgspec.to_builtins(read_body(service, _Service))
    return merged


def _merge_part(name: str, before: Document, sent: Document) -> Document:
    part = sent.get(name, {})
    if not isinstance(part, dict):
        raise Refusal("invalid_input", "is not an object", name)
    merged: Document = before.get(name, {}) | part
    return merged


def _check_services(project: SimProject, balancer: Document, services: list[Document]) -> None:
    """Check what services must not have together."""
    limits = balancer["load_balancer_type"]
    if len(services) > limits["max_services"]:
        raise Refusal("resource_limit_exceeded", "services of this type of load balancer")
    ports = [each["listen_port"] for each in services]
    ports += [80 for each in services if each.get("http", {}).get("redirect_http")]
    if len(set(ports)) < len(ports):
        raise Refusal("source_port_already_used")
    certificates = {number for each in services for number in each.get("http", {}).get("certificates", ())}
    if len(certificates) > limits["max_assigned_certificates"]:
        raise Refusal("resource_limit_exceeded", "certificates of this type of load balancer")
    for number in certificates:
        project.find("certificates", number)


def read_new_service(project: SimProject, balancer: Document, sent: Document) -> Document:
    """Return the service that is to be added. Raises Refusal if the balancer cannot have it."""
    service = _merge_service({}, sent)
    _check_services(project, balancer, [*balancer["services"], service])
    return service


def _find_service(balancer: Document, listen_port: Any) -> Document:
    for each in balancer["services"]:
        if each["listen_port"] == listen_port:
            found: Document = each
            return found
    raise Refusal("not_found", "no such service")


def add_service(project: SimProject, balancer: Document, sent: Document) -> Effect:
    """Add a service."""
    service = read_new_service(project, balancer, sent)
    return lambda: balancer["services"].append(service)


def update_service(project: SimProject, balancer: Document, sent: Document) -> Effect:
    """Change the fields that the request has."""
    before = _find_service(balancer, sent.get("listen_port"))
    service = _merge_service(before, sent)
    others = [each for each in balancer["services"] if each is not before]
    _check_services(project, balancer, [*others, service])

    def replace() -> None:
        before.clear()
        before.update(service)

    return replace


def delete_service(project: SimProject, balancer: Document, sent: Document) -> Effect:
    """Delete the service with this port."""
    service = _find_service(balancer, read_field(sent, "listen_port", Port))
    return lambda: balancer["services"].remove(service)
