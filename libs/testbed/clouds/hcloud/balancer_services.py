"""The services of a load balancer: the ports on which it listens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UnsetType

from libs.testbed.clouds.hcloud.actions import Effect
from libs.testbed.clouds.hcloud.bodies import ListenPortBody, ServiceBody, read_body
from libs.testbed.clouds.hcloud.errors import Refusal
from libs.testbed.clouds.hcloud.objects import Document

if TYPE_CHECKING:
    from libs.testbed.clouds.hcloud.project import SimProject

_HTTP: Final[Document] = {
    "cookie_name": "HCLBSTICKY",
    "cookie_lifetime": 300,
    "certificates": [],
    "redirect_http": False,
    "sticky_sessions": False,
    "timeout_idle": 60,
}
_CHECK_HTTP: Final[Document] = {
    "domain": "",
    "path": "/",
    "response": "",
    "status_codes": ["2??", "3??"],
    "tls": False,
}


def _merge_service(before: Document, sent: ServiceBody) -> Document:
    """The service after a request that may name only some of its fields."""
    changes = msgspec.to_builtins(sent)
    protocol = changes.get("protocol", before.get("protocol"))
    if protocol is None:
        raise Refusal("invalid_input", "is needed", "protocol")
    defaults: Document = {"protocol": protocol, "proxyprotocol": False}
    if protocol != "tcp":
        defaults |= {"listen_port": 443 if protocol == "https" else 80, "destination_port": 80}
    service: Document = defaults | before | changes
    for missing in {"listen_port", "destination_port"} - service.keys():
        raise Refusal("invalid_input", "is needed", missing)
    service.pop("http", None)
    if protocol != "tcp":
        service["http"] = _HTTP | before.get("http", {}) | changes.get("http", {})
    elif "http" in changes:
        raise Refusal("invalid_input", "not with this protocol", "http")
    old, new = before.get("health_check", {}), changes.get("health_check", {})
    times = {"interval": 15, "timeout": 10, "retries": 3}
    check = {"protocol": "tcp", "port": service["destination_port"]} | times | old | new
    check.pop("http", None)
    if check["protocol"] == "http":
        check["http"] = _CHECK_HTTP | old.get("http", {}) | new.get("http", {})
    service["health_check"] = check
    return service


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


def read_new_service(project: SimProject, balancer: Document, sent: ServiceBody) -> Document:
    """Return the service that is to be added. Raises Refusal if the balancer cannot have it."""
    service = _merge_service({}, sent)
    _check_services(project, balancer, [*balancer["services"], service])
    return service


def _find_service(balancer: Document, listen_port: int | UnsetType) -> Document:
    for each in balancer["services"]:
        if each["listen_port"] == listen_port:
            found: Document = each
            return found
    raise Refusal("not_found", "no such service")


def add_service(project: SimProject, balancer: Document, sent: Document) -> Effect:
    """Add a service."""
    service = read_new_service(project, balancer, read_body(sent, ServiceBody))
    return lambda: balancer["services"].append(service)


def update_service(project: SimProject, balancer: Document, sent: Document) -> Effect:
    """Change the fields that the request has."""
    body = read_body(sent, ServiceBody)
    before = _find_service(balancer, body.listen_port)
    service = _merge_service(before, body)
    others = [each for each in balancer["services"] if each is not before]
    _check_services(project, balancer, [*others, service])

    def replace() -> None:
        before.clear()
        before.update(service)

    return replace


def delete_service(project: SimProject, balancer: Document, sent: Document) -> Effect:
    """Delete the service with this port."""
    service = _find_service(balancer, read_body(sent, ListenPortBody).listen_port)
    return lambda: balancer["services"].remove(service)
