"""Changes of networks, by the rules of the API."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from libs.testbed.clouds.hcloud.actions import Effect
from libs.testbed.clouds.hcloud.bodies import (
    AddSubnetBody,
    DeleteSubnetBody,
    ProtectionBody,
    RouteBody,
    read_body,
)
from libs.testbed.clouds.hcloud.errors import Refusal
from libs.testbed.clouds.hcloud.objects import Document

if TYPE_CHECKING:
    from libs.testbed.clouds.hcloud.project import SimProject

_PRIVATE: Final = tuple(
    ipaddress.IPv4Network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)
_EVERYWHERE: Final = ipaddress.IPv4Network("0.0.0.0/0")
_SERVER_GATEWAY: Final = ipaddress.IPv4Address("172.31.1.1")  # of the public interface of every server


def render_network(project: SimProject, network: Document) -> Document:
    """Return the network as it is sent: with what is attached to it."""
    attached = {
        kind: [
            each["id"]
            for each in project.tables[kind].values()
            if any(place["network"] == network["id"] for place in each["private_net"])
        ]
        for kind in ("servers", "load_balancers")
    }
    return network | attached


def _read_range(text: str, field: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise Refusal("invalid_input", str(error), field) from error


def _read_gateway(network: Document, text: str) -> ipaddress.IPv4Address:
    try:
        gateway = ipaddress.IPv4Address(text)
    except ValueError as error:
        raise Refusal("invalid_input", str(error), "gateway") from error
    inside = ipaddress.IPv4Network(network["ip_range"])
    if gateway not in inside or gateway in {inside.network_address + 1, _SERVER_GATEWAY}:
        raise Refusal("invalid_input", "not an address that can be a gateway", "gateway")
    return gateway


def _check_overlap(network: Document, wanted: ipaddress.IPv4Network, field: str) -> None:
    used = [each["ip_range"] for each in network["subnets"]]
    used += [each["destination"] for each in network["routes"] if each["destination"] != str(_EVERYWHERE)]
    if any(wanted.overlaps(ipaddress.IPv4Network(each)) for each in used):
        raise Refusal("invalid_input", "overlaps a subnet or a route", field)


def _add_route(project: SimProject, network: Document, sent: Document) -> Effect:
    body = read_body(sent, RouteBody)
    destination = _read_range(body.destination, "destination")
    _read_gateway(network, body.gateway)
    if destination == _EVERYWHERE:
        if any(each["destination"] == body.destination for each in network["routes"]):
            raise Refusal("invalid_input", "overlaps a route", "destination")
    else:
        if _SERVER_GATEWAY in destination or not any(destination.subnet_of(each) for each in _PRIVATE):
            raise Refusal("invalid_input", "not a private range", "destination")
        _check_overlap(network, destination, "destination")
    if len(network["routes"]) >= project.max_routes:
        raise Refusal("resource_limit_exceeded", "routes of this network")
    route = {"destination": body.destination, "gateway": body.gateway}
    return lambda: network["routes"].append(route)


def _delete_route(project: SimProject, network: Document, sent: Document) -> Effect:
    body = read_body(sent, RouteBody)
    route = {"destination": body.destination, "gateway": body.gateway}
    if route not in network["routes"]:
        raise Refusal("not_found", "no such route")
    return lambda: network["routes"].remove(route)


def _add_subnet(project: SimProject, network: Document, sent: Document) -> Effect:
    body = read_body(sent, AddSubnetBody)
    wanted, inside = _read_range(body.ip_range, "ip_range"), ipaddress.IPv4Network(network["ip_range"])
    if not wanted.subnet_of(inside):
        raise Refusal("invalid_input", "not inside the network", "ip_range")
    _check_overlap(network, wanted, "ip_range")
    subnet = {
        "type": body.type,
        "ip_range": body.ip_range,
        "network_zone": body.network_zone,
        "gateway": str(inside.network_address + 1),
    }
    return lambda: network["subnets"].append(subnet)


def _delete_subnet(project: SimProject, network: Document, sent: Document) -> Effect:
    wanted = read_body(sent, DeleteSubnetBody).ip_range
    subnet = next((each for each in network["subnets"] if each["ip_range"] == wanted), None)
    if subnet is None:
        raise Refusal("not_found", "no such subnet")
    inside = ipaddress.IPv4Network(wanted)
    used = project.list_private_addresses(network["id"])
    if any(ipaddress.IPv4Address(each) in inside for each in used):
        raise Refusal("resource_in_use", "an object is attached to the subnet")
    return lambda: network["subnets"].remove(subnet)


def _change_protection(project: SimProject, network: Document, sent: Document) -> Effect:
    is_protected = read_body(sent, ProtectionBody).delete
    return lambda: network["protection"].update(delete=is_protected)


NETWORK_COMMANDS: Final[Mapping[str, Callable[[SimProject, Document, Document], Effect]]] = {
    "add_route": _add_route,
    "delete_route": _delete_route,
    "add_subnet": _add_subnet,
    "delete_subnet": _delete_subnet,
    "change_protection": _change_protection,
}
