"""A router of Neutron and the ports behind it: what they route, and the requests of one change. Pure.

Neutron drops what a port sends from other addresses than its own. So the port of a Node needs its pod CIDR
as an allowed address pair, beside the route of the router.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Final

import msgspec

from libs.clouds.balancers import WriteRejection
from libs.clouds.routes import Route, RouteTable

ROUTERS: Final = "/routers"
PORTS: Final = "/ports"


class AddressPair(msgspec.Struct, frozen=True, omit_defaults=True):
    """Addresses that a port may send from; without a MAC address, Neutron takes that of the port."""

    ip_address: str
    mac_address: str = ""

    @property
    def network(self) -> str:
        """The addresses as a CIDR."""
        try:
            return str(ip_network(self.ip_address))
        except ValueError:  # with host bits: it is not ours
            return self.ip_address


class FixedIp(msgspec.Struct, frozen=True):
    """An address of a port. Any other text is a ValueError, so a response with it is malformed."""

    subnet_id: str
    ip_address: str

    def __post_init__(self) -> None:
        ip_address(self.ip_address)


class Port(msgspec.Struct, frozen=True):
    """The fields of a port that this client reads."""

    id: str
    project_id: str
    network_id: str
    device_id: str  # a server, or a router
    mac_address: str
    fixed_ips: tuple[FixedIp, ...]
    revision_number: int
    created_at: str = ""
    allowed_address_pairs: tuple[AddressPair, ...] | None = None  # None: the cloud has none
    port_security_enabled: bool = True

    @property
    def own_pairs(self) -> frozenset[str]:
        """The networks that it may send from with its own MAC address."""
        pairs = self.allowed_address_pairs or ()
        return frozenset(each.network for each in pairs if each.mac_address == self.mac_address)

    def allows(self, destination: str) -> bool:
        """Return whether it may send from these addresses. Without port security it may from any."""
        is_checked = self.port_security_enabled and self.allowed_address_pairs is not None
        return not is_checked or destination in self.own_pairs

    def has_route_beside(self, routes: frozenset[Route], route: Route) -> bool:
        """Return whether the destination is routed to another address of this port: both need one pair."""
        others = {each.ip_address for each in self.fixed_ips} - {route.gateway}
        return any(Route(route.destination, each) in routes for each in others)

    def is_same_place(self, other: "Port") -> bool:
        """Return whether both are one port with the same addresses, of the same server."""
        return (self.id, self.device_id, self.fixed_ips) == (other.id, other.device_id, other.fixed_ips)


class RouterRoute(msgspec.Struct, frozen=True):
    """A route of a router as Neutron writes it; the same holds for its texts."""

    destination: str
    nexthop: str

    def __post_init__(self) -> None:
        ip_network(self.destination, strict=False)
        ip_address(self.nexthop)


class Router(msgspec.Struct, frozen=True):
    """The fields of a router that this client reads."""

    id: str
    project_id: str
    routes: tuple[RouterRoute, ...]

    @property
    def route_set(self) -> frozenset[Route]:
        """Its routes."""
        return frozenset(Route(each.destination, each.nexthop) for each in self.routes)


class RouterPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The ports in the subnets to which a router has an interface, by their addresses there."""

    by_address: Mapping[str, Port] = {}
    gateways: Mapping[tuple[str, int], str] = {}  # by server and IP version: of the server's oldest port
    families: frozenset[int] = frozenset()  # IP versions of these subnets

    def find_gateway(self, server_id: str, destination: str) -> str:
        """Return the server's address for the destination; "" without one."""
        return self.gateways.get((server_id, ip_network(destination).version), "")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the router or of a port."""

    path: str
    body: bytes
    if_match: str = ""  # the revision that a change is for


def locate_ports(interfaces: Iterable[Port], ports: Iterable[Port]) -> RouterPorts:
    """Return the ports behind these interfaces of a router."""
    inside = [each for port in interfaces for each in port.fixed_ips]
    routers = {port.device_id for port in interfaces}
    subnets = {each.subnet_id for each in inside}
    by_address: dict[str, Port] = {}
    gateways: dict[tuple[str, int], str] = {}
    for port in sorted(ports, key=lambda port: (port.created_at, port.id)):
        for each in port.fixed_ips if port.device_id not in routers else ():
            if each.subnet_id in subnets:
                by_address[each.ip_address] = port
                server = (port.device_id, ip_address(each.ip_address).version)
                gateways.setdefault(server, each.ip_address)
    families = frozenset(ip_address(each.ip_address).version for each in inside)
    return RouterPorts(by_address=by_address, gateways=gateways, families=families)


def build_table(router: Router, ports: RouterPorts, limit: int | None) -> RouteTable:
    """Return the routes, of which those are partial that lack the address pair, or that only have it."""
    routes = router.route_set
    unrouted = {
        route
        for address, port in ports.by_address.items()
        for network in port.own_pairs
        if (route := Route(network, address)) not in routes and not port.has_route_beside(routes, route)
    }
    unsendable = {
        each
        for each in routes
        if (port := ports.by_address.get(each.gateway)) is not None and not port.allows(each.destination)
    }
    return RouteTable(routes=routes, limit=limit, partial=frozenset(unrouted | unsendable))


def plan_creation(router: Router, port: Port | None, route: Route) -> tuple[Request, ...] | WriteRejection:
    """Return the requests that are missing: first the pair, so that the route is of use at once."""
    if port is None:
        return WriteRejection(kind="held_back", reason=f"no port has the address {route.gateway} any more")
    # Neutron adds a route beside another one with the same destination.
    other = next((each for each in sorted(router.route_set) if _is_in_the_way(each, route)), None)
    if other is not None and route not in router.route_set:
        return WriteRejection(kind="invalid", reason=f"another route exists: {other}")
    requests = []
    if not port.allows(route.destination):
        pairs = port.allowed_address_pairs or ()
        requests.append(_write_pairs(port, (*pairs, AddressPair(route.destination))))
    if route not in router.route_set:
        requests.append(_write_route(router, "add_extraroutes", route))
    return tuple(requests)


def plan_deletion(router: Router, port: Port | None, route: Route) -> tuple[Request, ...]:
    """Return the requests that remove what there is: first the route, so that it never leads to a drop.

    The pair stays while the router has a route for it to another address of the port.
    """
    requests = []
    if route in router.route_set:
        requests.append(_write_route(router, "remove_extraroutes", route))
    is_allowed = port is not None and route.destination in port.own_pairs
    if port is not None and is_allowed and not port.has_route_beside(router.route_set, route):
        own = (route.destination, port.mac_address)
        pairs = port.allowed_address_pairs or ()
        kept = tuple(each for each in pairs if (each.network, each.mac_address) != own)
        requests.append(_write_pairs(port, kept))
    return tuple(requests)


def _is_in_the_way(other: Route, route: Route) -> bool:
    """Whether both lead some address elsewhere; a default route is in no one's way."""
    one, another = ip_network(other.destination, strict=False), ip_network(route.destination)
    return one.prefixlen > 0 and one.version == another.version and one.overlaps(another)


def _write_route(router: Router, action: str, route: Route) -> Request:
    """Change one route, never the whole list."""
    routes = [RouterRoute(route.destination, route.gateway)]
    body = msgspec.json.encode({"router": {"routes": routes}})
    return Request(path=f"{ROUTERS}/{router.id}/{action}", body=body)


def _write_pairs(port: Port, pairs: tuple[AddressPair, ...]) -> Request:
    """Replace all pairs of the port, unless another client has changed it since it was read."""
    return Request(
        path=f"{PORTS}/{port.id}",
        body=msgspec.json.encode({"port": {"allowed_address_pairs": pairs}}),
        if_match=f"revision_number={port.revision_number}",
    )
