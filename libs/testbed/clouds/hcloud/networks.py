"""Routes of networks, by the rules of the API."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from libs.testbed.clouds.hcloud.actions import Effect
from libs.testbed.clouds.hcloud.bodies import Body, read_body
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


class _Route(Body):
    destination: str
    gateway: str


def _add_route(project: SimProject, network: Document, sent: Document) -> Effect:
    body = read_body(sent, _Route)
    try:
        destination, gateway = ipaddress.IPv4Network(body.destination), ipaddress.IPv4Address(body.gateway)
    except ValueError as error:
        raise Refusal("invalid_input", str(error), "destination") from error
    inside = ipaddress.IPv4Network(network["ip_range"])
    if gateway not in inside or gateway in {inside.network_address + 1, _SERVER_GATEWAY}:
        raise Refusal("invalid_input", "not an address that can be a gateway", "gateway")
    if destination == _EVERYWHERE:
        if any(each["destination"] == body.destination for each in network["routes"]):
            raise Refusal("invalid_input", "overlaps a route", "destination")
    else:
        if _SERVER_GATEWAY in destination or not any(destination.subnet_of(each) for each in _PRIVATE):
            raise Refusal("invalid_input", "not a private range", "destination")
        _check_overlap(network, destination)
    if len(network["routes"]) >= project.max_routes:
        raise Refusal("resource_limit_exceeded", "routes of this network")
    route = {"destination": body.destination, "gateway": body.gateway}
    return lambda: network["routes"].append(route)


def _check_overlap(network: Document, destination: ipaddress.IPv4Network) -> None:
    used = [each["ip_range"] for each in network["subnets"]]
    used += [each["destination"] for each in network["routes"] if each["destination"] != str(_EVERYWHERE)]
    if any(destination.overlaps(ipaddress.IPv4Network(each)) for each in used):
        raise Refusal("invalid_input", "overlaps a subnet or a route", "destination")


def _delete_route(project: SimProject, network: Document, sent: Document) -> Effect:
    body = read_body(sent, _Route)
    route = {"destination": body.destination, "gateway": body.gateway}
    if route not in network["routes"]:
        raise Refusal("not_found", "no such route")
    return lambda: network["routes"].remove(route)


NETWORK_COMMANDS: Final[Mapping[str, Callable[[SimProject, Document, Document], Effect]]] = {
    "add_route": _add_route,
    "delete_route": _delete_route,
}
