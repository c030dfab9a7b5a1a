"""What a router and its ports route, and which requests one change takes."""

import json
from typing import Any

import msgspec
import pytest

from libs.clouds.balancers import WriteRejection
from libs.clouds.openstack.router_changes import (
    AddressPair,
    FixedIp,
    Port,
    Request,
    Router,
    RouterRoute,
    build_table,
    locate_ports,
    plan_creation,
    plan_deletion,
)
from libs.clouds.routes import Route

MAC, GATEWAY, POD_CIDR = "fa:16:3e:00:00:01", "10.0.0.11", "10.244.1.0/24"
ROUTE = Route(POD_CIDR, GATEWAY)
SHARED = AddressPair("10.0.0.200", MAC)
OWN = AddressPair(POD_CIDR, MAC)


def port(*addresses: str, pairs: tuple[AddressPair, ...] | None = (), **fields: Any) -> Port:
    """The port of a server with these addresses, in the subnet behind the router."""
    defaults: dict[str, Any] = {
        "id": "port-1",
        "project_id": "project",
        "network_id": "network",
        "device_id": "server-1",
        "mac_address": MAC,
        "fixed_ips": tuple(FixedIp("inside", each) for each in addresses or (GATEWAY,)),
        "revision_number": 7,
        "allowed_address_pairs": pairs,
    }
    return Port(**(defaults | fields))


def interface(address: str = "10.0.0.1", subnet: str = "inside") -> Port:
    fixed = (FixedIp(subnet, address),)
    return port(id="interface", device_id="router", fixed_ips=fixed)


def router(*routes: Route) -> Router:
    return Router("router", "project", tuple(RouterRoute(each.destination, each.gateway) for each in routes))


def describe(requests: tuple[Request, ...] | WriteRejection) -> list[tuple[str, Any]]:
    """Path and the changed field of each request."""
    assert not isinstance(requests, WriteRejection), requests
    bodies = [(each.path, json.loads(each.body)) for each in requests]
    return [(path, next(iter(next(iter(body.values())).values()))) for path, body in bodies]


ADDED = [{"destination": POD_CIDR, "nexthop": GATEWAY}]
WITH_PAIR = [{"ip_address": "10.0.0.200", "mac_address": MAC}, {"ip_address": POD_CIDR}]
PAIR_WRITE, ROUTE_WRITE = ("/ports/port-1", WITH_PAIR), ("/routers/router/add_extraroutes", ADDED)


@pytest.mark.parametrize(
    ("found", "routes", "expected"),
    [
        (port(pairs=(SHARED,)), (), [PAIR_WRITE, ROUTE_WRITE]),
        (port(pairs=(SHARED,)), (ROUTE,), [PAIR_WRITE]),
        (port(pairs=(OWN,)), (), [ROUTE_WRITE]),
        (port(pairs=(OWN,)), (ROUTE,), []),
        (port(port_security_enabled=False), (ROUTE,), []),
        (port(pairs=None), (ROUTE,), []),
    ],
    ids=["both", "the pair", "the route", "neither", "no port security", "no pairs at this cloud"],
)
def test_a_creation_sends_what_is_missing(found: Port, routes: tuple[Route, ...], expected: list[Any]):
    assert describe(plan_creation(router(*routes), found, ROUTE)) == expected


def test_a_pair_is_written_only_for_the_revision_that_was_read():
    planned = plan_creation(router(), port(), ROUTE)
    assert not isinstance(planned, WriteRejection)
    assert [each.if_match for each in planned] == ["revision_number=7", ""]


@pytest.mark.parametrize(
    ("destination", "is_in_the_way"),
    [
        (POD_CIDR, True),
        ("10.244.0.0/16", True),
        ("10.244.1.128/25", True),
        ("10.244.1.7/24", True),
        ("10.244.2.0/24", False),
        ("0.0.0.0/0", False),
        ("fd00::/8", False),
    ],
)
def test_no_route_is_added_beside_one_with_the_same_addresses(destination: str, is_in_the_way: bool):
    planned = plan_creation(router(Route(destination, "10.0.0.99")), port(), ROUTE)
    assert isinstance(planned, WriteRejection) == is_in_the_way


def test_a_deletion_removes_what_is_there_and_no_other_pair():
    foreign = AddressPair(POD_CIDR, "fa:16:3e:00:00:99")
    removed = ("/routers/router/remove_extraroutes", ADDED)
    kept = [{"ip_address": POD_CIDR, "mac_address": foreign.mac_address}, WITH_PAIR[0]]
    found = port(pairs=(foreign, OWN, SHARED))
    assert describe(plan_deletion(router(ROUTE), found, ROUTE)) == [removed, ("/ports/port-1", kept)]
    assert describe(plan_deletion(router(), found, ROUTE)) == [("/ports/port-1", kept)]
    assert describe(plan_deletion(router(ROUTE), port(pairs=(foreign,)), ROUTE)) == [removed]
    assert describe(plan_deletion(router(ROUTE), None, ROUTE)) == [removed]
    assert plan_deletion(router(Route(POD_CIDR, "10.0.0.99")), None, ROUTE) == ()


@pytest.mark.parametrize(
    ("routes", "pairs", "is_complete", "has_part"),
    [
        ((ROUTE,), (OWN,), True, True),
        ((ROUTE,), (), False, True),
        ((), (OWN,), False, True),
        ((), (), False, False),
        ((ROUTE,), None, True, True),
    ],
)
def test_a_route_is_complete_with_its_pair(
    routes: tuple[Route, ...], pairs: tuple[AddressPair, ...] | None, is_complete: bool, has_part: bool
):
    table = build_table(router(*routes), locate_ports([interface()], [port(pairs=pairs)]), 30)
    assert (table.is_complete(ROUTE), table.has_part(ROUTE), table.limit) == (is_complete, has_part, 30)


def test_a_pair_belongs_to_the_route_of_any_address_of_its_port():
    beside, found = Route(POD_CIDR, "10.0.0.12"), port(GATEWAY, "10.0.0.12", pairs=(OWN,))
    table = build_table(router(beside), locate_ports([interface()], [found]), None)
    assert (table.has_part(ROUTE), table.is_complete(beside)) == (False, True)
    unrouted = build_table(router(), locate_ports([interface()], [found]), None)
    assert unrouted.partial == {ROUTE, beside}
    removed = ("/routers/router/remove_extraroutes", ADDED)
    assert describe(plan_deletion(router(ROUTE, beside), found, ROUTE)) == [removed]
    assert describe(plan_deletion(router(ROUTE), found, ROUTE)) == [removed, ("/ports/port-1", [])]


def test_a_route_whose_gateway_has_no_port_lacks_nothing():
    table = build_table(router(ROUTE), locate_ports([interface()], []), None)
    assert table.is_complete(ROUTE)


def test_the_gateway_is_the_oldest_ports_address_behind_the_router_in_the_same_family():
    both = [interface(), interface("fd00:9::1", "inside-6")]
    dual = port(fixed_ips=(FixedIp("inside", GATEWAY), FixedIp("inside-6", "fd00:9::11")), created_at="2")
    older = port("10.0.0.12", id="port-0", created_at="1")
    outside = port(id="port-9", fixed_ips=(FixedIp("outside", "10.0.0.13"),), created_at="0")
    found = locate_ports(both, [dual, older, outside, *both])
    assert found.families == {4, 6}
    assert found.find_gateway("server-1", POD_CIDR) == "10.0.0.12"
    assert found.find_gateway("server-1", "fd00:1::/64") == "fd00:9::11"
    assert found.find_gateway("router", POD_CIDR) == found.find_gateway("server-2", POD_CIDR) == ""


@pytest.mark.parametrize("field", ["destination", "nexthop"])
def test_a_router_with_a_route_that_is_none_is_no_answer(field: str):
    routes = [{"destination": POD_CIDR, "nexthop": GATEWAY} | {field: "none"}]
    body = json.dumps({"id": "router", "project_id": "project", "routes": routes})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=Router)
