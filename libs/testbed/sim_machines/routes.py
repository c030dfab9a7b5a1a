"""RouteStatuses of a machine, with the IDs that Talos assigns."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from libs.testbed.machine_facts import Route, SimMachineFacts
from libs.testbed.sim_machines.protobuf_wire import Field

_TABLES = {"main": 254, "local": 255}
_UNICAST, _STATIC = 1, 4
_INET4, _INET6 = 2, 10
OWNER = "network.RouteStatusController"


def build_routes(machine: SimMachineFacts) -> Iterator[tuple[str, dict[int, Field]]]:
    """Yield ID and spec of each route. Raises ValueError for an invalid route."""
    for route in machine.routes:
        try:
            yield _build_id(route), _build_spec(route)
        except ValueError as error:
            raise ValueError(f'machine "{machine.id}": {error}') from error


def _build_id(route: Route) -> str:
    table = "" if route.table == "main" else f"{route.table}/"
    family = f"{route.link}/inet6" if route.ipv6 else "inet4"
    return f"{table}{family}/{route.gateway}/{route.destination}/{route.priority}"


def _build_spec(route: Route) -> dict[int, Field]:
    if route.table not in _TABLES:
        raise ValueError(f"{route.table} does not belong to RoutingTable values")
    return {
        1: _INET6 if route.ipv6 else _INET4,
        2: _prefix(route.destination),
        3: {},
        4: _gateway(route.gateway),
        5: route.link_index,
        6: route.link,
        7: _TABLES[route.table],
        8: route.priority,
        10: _UNICAST,
        12: _STATIC,
    }


def _gateway(text: str) -> dict[int, Field]:
    if not text:
        return {}
    ip, _, zone = text.partition("%")
    return {1: ipaddress.ip_address(ip).packed + zone.encode()}


def _prefix(text: str) -> dict[int, Field]:
    if not text:
        return {}
    ip, _, length = text.partition("/")
    return {1: ipaddress.ip_address(ip).packed, 2: int(length)}
