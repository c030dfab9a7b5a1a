"""Load balancers and their actions, by the rules of the API."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from libs.testbed.clouds.hcloud.actions import Effect
from libs.testbed.clouds.hcloud.balancer_services import (
    add_service,
    delete_service,
    read_new_service,
    update_service,
)
from libs.testbed.clouds.hcloud.bodies import Body, Name, read_body, read_field
from libs.testbed.clouds.hcloud.errors import Refusal
from libs.testbed.clouds.hcloud.objects import (
    LOAD_BALANCER_TYPES,
    LOCATIONS,
    Document,
    make_load_balancer,
    make_load_balancer_type,
)
from libs.testbed.clouds.hcloud.selectors import match_labels

if TYPE_CHECKING:
    from libs.testbed.clouds.hcloud.project import SimProject

_Algorithm = Literal["round_robin", "least_connections"]


class _Target(Body):
    type: Literal["server", "label_selector", "ip"]
    server: dict[Literal["id"], int] | None = None
    label_selector: dict[Literal["selector"], str] | None = None
    ip: dict[Literal["ip"], str] | None = None
    use_private_ip: bool | None = None


class _Create(Body):
    name: Name
    load_balancer_type: str | int
    algorithm: dict[Literal["type"], _Algorithm] | None = None
    location: str | int | None = None
    network_zone: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    network: int | None = None
    public_interface: bool | None = None
    services: tuple[Document, ...] = ()
    targets: tuple[_Target, ...] = ()


class _Attach(Body):
    network: int
    ip: str | None = None
    ip_range: str | None = None


class _DnsPtr(Body):
    ip: str
    dns_ptr: str | None


# ---- the balancer itself


def create_balancer(project: SimProject, sent: Document) -> Document:
    """Return the balancer, which is in no table yet. Nothing has changed if it is refused."""
    body = read_body(sent, _Create)
    if (body.location is None) == (body.network_zone is None):
        raise Refusal("invalid_input", "location or network_zone is needed", "location")
    for location, (number, zone, _) in LOCATIONS.items():
        if body.network_zone == zone or str(body.location) in {location, str(number)}:
            break
    else:
        raise Refusal("invalid_input", "unknown location", "location")
    project.check_new("load_balancers", body.name, body.labels)
    balancer = make_load_balancer(
        project.next_id(),
        body.name,
        balancer_type=_find_type(body.load_balancer_type),
        location=location,
        created=project.format_now(),
    )
    balancer["labels"] = dict(body.labels)
    if body.algorithm:
        balancer["algorithm"] |= body.algorithm
    if body.network is not None:
        balancer["private_net"] = [_find_place(project, balancer, _Attach(network=body.network))]
    if body.public_interface is False:
        _disable_public(project, balancer, {})()
    for service in body.services:
        balancer["services"].append(read_new_service(project, balancer, service))
    for target in body.targets:
        balancer["targets"].append(_read_new_target(project, balancer, target))
    return balancer


def render_balancer(project: SimProject, balancer: Document) -> Document:
    """Return the balancer as it is sent: with the health of its targets, and those of its selectors."""
    unknown = {"status": "unknown", "detail": None, "http_status_code": None}
    health = [{"listen_port": each["listen_port"]} | unknown for each in balancer["services"]]

    def render_target(target: Document) -> Document:
        if target["type"] != "label_selector":
            return target | {"health_status": health}
        selector = target["label_selector"]["selector"]
        servers = project.tables["servers"].values()
        selected = [
            {
                "type": "server",
                "server": {"id": each["id"]},
                "health_status": health,
                "use_private_ip": target["use_private_ip"],
            }
            for each in servers
            if match_labels(selector, each["labels"])
        ]
        return target | {"health_status": [], "targets": selected}

    return balancer | {"targets": [render_target(each) for each in balancer["targets"]]}


# ---- targets


def _read_target(sent: _Target) -> Document:
    """The identity of the target."""
    reference = getattr(sent, sent.type)
    if not reference:
        raise Refusal("invalid_input", "the field that the type names is missing", sent.type)
    return {"type": sent.type, sent.type: reference}


def _find_target(balancer: Document, identity: Document) -> Document | None:
    return next((each for each in balancer["targets"] if identity.items() <= each.items()), None)


def _read_new_target(project: SimProject, balancer: Document, sent: _Target) -> Document:
    target = _read_target(sent)
    is_private = bool(sent.use_private_ip)
    if _find_target(balancer, target) is not None:
        raise Refusal("target_already_defined")
    if len(balancer["targets"]) >= balancer["load_balancer_type"]["max_targets"]:
        raise Refusal("resource_limit_exceeded", "targets of this type of load balancer")
    if is_private and not balancer["private_net"]:
        raise Refusal("load_balancer_not_attached_to_network")
    if not is_private and not balancer["public_net"]["enabled"]:
        raise Refusal("load_balancer_public_interface_disabled")
    match target:
        case {"server": {"id": number}}:
            _check_server(project.tables["servers"].get(number), balancer, is_private=is_private)
        case {"ip": {"ip": address}}:
            _check_address(project, address, is_private=is_private)
            return target
        case {"label_selector": {"selector": selector}}:
            try:
                match_labels(selector, {})
            except ValueError as error:
                raise Refusal("invalid_input", str(error), "label_selector") from error
    return target | {"use_private_ip": is_private}


def _check_server(server: Document | None, balancer: Document, *, is_private: bool) -> None:
    """Check whether the balancer reaches the server; None is one that the project does not have."""
    if is_private:
        networks = {each["network"] for each in balancer["private_net"]}
        if server is None or not any(each["network"] in networks for each in server["private_net"]):
            raise Refusal("resolve_cloud_private_targets_error")
    elif server is None:
        raise Refusal("invalid_input", "cloud target was not found")
    elif server["public_net"]["ipv4"] is None:
        raise Refusal("resolve_cloud_public_targets_error")


def _check_address(project: SimProject, address: str, *, is_private: bool) -> None:
    if is_private:
        raise Refusal("invalid_input", "not for targets of this type", "use_private_ip")
    if address in project.list_public_addresses():
        raise Refusal("cloud_resource_ip_not_allowed")
    if address not in project.dedicated_addresses:
        raise Refusal("ip_not_owned")


def _add_target(project: SimProject, balancer: Document, sent: Document) -> Effect:
    target = _read_new_target(project, balancer, read_body(sent, _Target))

    def append() -> None:
        if "server" not in target or target["server"]["id"] in project.tables["servers"]:
            balancer["targets"].append(target)

    return append


def _remove_target(project: SimProject, balancer: Document, sent: Document) -> Effect:
    target = _find_target(balancer, _read_target(read_body(sent, _Target)))
    if target is None:
        raise Refusal("not_found", "no such target")
    # by identity: the server may be deleted before, and its target with it
    return lambda: balancer.update(targets=[each for each in balancer["targets"] if each is not target])


# ---- networks


def _find_place(project: SimProject, balancer: Document, body: _Attach) -> Document:
    """The attachment to a network: an address of a subnet in the balancer's zone."""
    network = project.find("networks", body.network)
    if balancer["private_net"]:
        raise Refusal("load_balancer_already_attached")
    zone = balancer["location"]["network_zone"]
    subnets = [
        ipaddress.ip_network(each["ip_range"])
        for each in network["subnets"]
        if each["network_zone"] == zone and body.ip_range in {None, each["ip_range"]}
    ]
    used = project.list_private_addresses(network["id"])
    if body.ip is not None:
        address = ipaddress.ip_address(body.ip)
        if body.ip in used or not any(address in each for each in subnets):
            raise Refusal("ip_not_available")
        return {"network": network["id"], "ip": body.ip}
    for subnet in subnets:
        for address in subnet.hosts():
            if str(address) not in used and str(address) != str(subnet.network_address + 1):
                return {"network": network["id"], "ip": str(address)}
    raise Refusal("no_subnet_available")


def _attach(project: SimProject, balancer: Document, sent: Document) -> Effect:
    place = _find_place(project, balancer, read_body(sent, _Attach))
    return lambda: balancer["private_net"].append(place)


def _detach(project: SimProject, balancer: Document, sent: Document) -> Effect:
    network = read_field(sent, "network", int)
    place = next((each for each in balancer["private_net"] if each["network"] == network), None)
    if place is None:
        raise Refusal("load_balancer_not_attached_to_network")
    return lambda: balancer["private_net"].remove(place)


def _enable_public(project: SimProject, balancer: Document, sent: Document) -> Effect:
    return lambda: balancer["public_net"].update(enabled=True)


def _disable_public(project: SimProject, balancer: Document, sent: Document) -> Effect:
    if not balancer["private_net"]:
        raise Refusal("load_balancer_not_attached_to_network")
    if any(not each.get("use_private_ip") for each in balancer["targets"]):
        raise Refusal("targets_without_use_private_ip")
    return lambda: balancer["public_net"].update(enabled=False)


# ---- the rest


def _change_algorithm(project: SimProject, balancer: Document, sent: Document) -> Effect:
    algorithm = read_field(sent, "type", _Algorithm)
    return lambda: balancer["algorithm"].update(type=algorithm)


def _find_type(wanted: str | int) -> str:
    for name, (number, *_) in LOAD_BALANCER_TYPES.items():
        if str(wanted) in {name, str(number)}:
            return name
    raise Refusal("invalid_input", "unknown type", "load_balancer_type")


def _change_type(project: SimProject, balancer: Document, sent: Document) -> Effect:
    kind = make_load_balancer_type(_find_type(read_field(sent, "load_balancer_type", str | int)))
    if any(len(balancer[each]) > kind[f"max_{each}"] for each in ("services", "targets")):
        raise Refusal("invalid_load_balancer_type")
    return lambda: balancer.update(load_balancer_type=kind)


def _change_protection(project: SimProject, balancer: Document, sent: Document) -> Effect:
    is_protected = read_field(sent, "delete", bool)
    return lambda: balancer["protection"].update(delete=is_protected)


def _change_dns_ptr(project: SimProject, balancer: Document, sent: Document) -> Effect:
    body = read_body(sent, _DnsPtr)
    for family in ("ipv4", "ipv6"):
        interface = balancer["public_net"][family]
        if interface["ip"] == body.ip:
            return lambda: interface.update(dns_ptr=body.dns_ptr or f"{interface['id']}.example")
    raise Refusal("not_found", "no such address")


BALANCER_COMMANDS: Final[Mapping[str, Callable[[SimProject, Document, Document], Effect]]] = {
    "add_target": _add_target,
    "remove_target": _remove_target,
    "add_service": add_service,
    "update_service": update_service,
    "delete_service": delete_service,
    "attach_to_network": _attach,
    "detach_from_network": _detach,
    "enable_public_interface": _enable_public,
    "disable_public_interface": _disable_public,
    "change_algorithm": _change_algorithm,
    "change_type": _change_type,
    "change_protection": _change_protection,
    "change_dns_ptr": _change_dns_ptr,
}
