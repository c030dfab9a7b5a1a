"""Which change of a network's routes is next, and which is none."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.clouds.instances import Instance, InstanceAddress, NotFound
from libs.clouds.routes import Route, RouteTable
from libs.common.contract.node import NETWORK_UNAVAILABLE, Node, NodeCondition
from services.cloud.core.routes.destinations import index_routes, is_inside_any, is_network
from services.cloud.core.routes.plan_routes import plan_route_step
from services.cloud.core.routes.route_record import (
    RecordedRoute,
    RouteRecord,
    encode_route_record,
    read_route_record,
)
from services.cloud.core.routes.route_view import (
    CreateRoute,
    DeleteRoute,
    InstanceListing,
    InstanceLookup,
    LookUpInstance,
    RoutePause,
    RouteStep,
    RouteView,
    SetCondition,
    TableAnswer,
    Wait,
    WriteRecord,
)
from tests.builders import NOW, make_node

FIRST = Route("10.244.1.0/24", "10.0.1.1")
SECOND = Route("10.244.2.0/24", "10.0.1.2")
ANSWERED: Mapping[str, Any] = {"began_at": NOW, "ended_at": NOW, "generation": 1}


def node(number: int, *pod_cidrs: str, **fields: Any) -> Node:
    """The Node of instance `number`, by default with the pod CIDR of that number."""
    made = make_node(
        f"web-{number}",
        uid=f"uid-{number}",
        provider_id=f"hcloud://{number}",
        pod_cidrs=pod_cidrs or (f"10.244.{number}.0/24",),
        **fields,
    )
    created = NOW - timedelta(days=1) + timedelta(minutes=number)
    return msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=created)
    )


def routed(number: int) -> Node:
    """The same, with the condition that its routes exist."""
    message = f"Network 4711 routes 10.244.{number}.0/24 to this Node"
    condition = NodeCondition(
        type=NETWORK_UNAVAILABLE, status="False", reason="RouteCreated", message=message
    )
    return node(number, conditions=(condition,))


def recorded(route: Route, instance: str, *, is_attempt: bool = False) -> RecordedRoute:
    deadline = NOW + timedelta(minutes=5) if is_attempt else None
    return RecordedRoute(route=route, instance_id=instance, create_deadline=deadline)


def list_instances(*numbers: int) -> InstanceListing:
    """All servers, at 10.0.1.<number>."""
    found = (
        Instance(
            id=str(each),
            name=f"web-{each}",
            is_shut_down=False,
            addresses=(InstanceAddress(f"10.0.{1 + each // 256}.{each % 256}", "4711"),),
        )
        for each in numbers
    )
    return InstanceListing(answer={each.id: each for each in found}, **ANSWERED)


def view(
    *nodes: Node,
    routes: tuple[Route, ...] = (),
    record: tuple[RecordedRoute, ...] = (),
    limit: int | None = 100,
    **fields: Any,
) -> RouteView:
    """All is answered: the servers 1 to 3 are in the network, at 10.0.1.1 to 10.0.1.3."""
    chosen: dict[str, Any] = {
        "now": NOW,
        "led_since": NOW - timedelta(hours=1),
        "lease_seconds": 90.0,
        "write_seconds": 30.0,
        "generation": 1,
        "network": "network 4711",
        "nodes": nodes,
        "pod_networks": ("10.244.0.0/16",),
        "is_complete": True,
        "parse_provider_id": lambda text: text.removeprefix("hcloud://") or None,
        "can_route": lambda destination: True,
        "find_gateway": lambda instance, destination: instance.addresses[0].address,
        "record": RouteRecord(entries=record),
        "table": TableAnswer(answer=RouteTable(routes=frozenset(routes), limit=limit), **ANSWERED),
        "listing": list_instances(1, 2, 3),
    }
    return RouteView(**(chosen | fields))


def find_problem(step: RouteStep) -> str:
    """Return the message of the condition that the step writes."""
    assert isinstance(step, SetCondition), step
    assert step.condition.reason == "NoRouteCreated"
    return step.condition.message


def test_a_node_whose_route_exists_becomes_available_before_others_get_theirs():
    records = (recorded(FIRST, "1"), recorded(SECOND, "2", is_attempt=True))
    step = plan_route_step(view(node(1), node(2), routes=(FIRST,), record=records))
    assert isinstance(step, SetCondition)
    assert (step.node.name, step.condition.reason) == ("web-1", "RouteCreated")
    step = plan_route_step(view(routed(1), node(2), routes=(FIRST,), record=records))
    assert step == CreateRoute(SECOND, "web-2")


def test_a_node_whose_condition_cannot_be_written_does_not_stop_others():
    records = (recorded(FIRST, "1"), recorded(SECOND, "2", is_attempt=True))
    seen = view(
        node(1), node(2), routes=(FIRST,), record=records, unwritable_uids=frozenset({"uid-1"})
    )  # fmt: skip
    assert plan_route_step(seen) == CreateRoute(SECOND, "web-2")


def test_a_condition_that_another_client_replaces_is_not_written_at_once_again():
    written = {"uid-1": routed(1).status.conditions[0]}
    seen = view(node(1), routes=(FIRST,), record=(recorded(FIRST, "1"),), written=written)
    assert isinstance(plan_route_step(seen), Wait)
    pause = RoutePause(until=NOW + timedelta(minutes=5), reason="why not")
    lost = view(node(1), written=written, pauses={FIRST: pause})
    assert find_problem(plan_route_step(lost)) == "No route for 10.244.1.0/24: why not"


# ---- a part of a route: the gateway has to allow the destination, too


def partial_table(*partial: Route, routes: tuple[Route, ...] = (), limit: int | None = 100) -> TableAnswer:
    table = RouteTable(routes=frozenset(routes), limit=limit, partial=frozenset(partial))
    return TableAnswer(answer=table, **ANSWERED)


@pytest.mark.parametrize("routes", [(FIRST,), ()], ids=["a route", "a pair"])
def test_a_part_of_a_route_is_recorded_before_the_rest_is_created(routes: tuple[Route, ...]):
    table = partial_table(FIRST, routes=routes, limit=len(routes) or 1)
    step = plan_route_step(view(node(1), table=table))
    assert isinstance(step, WriteRecord)
    assert step.record.find(FIRST) == recorded(FIRST, "1", is_attempt=True)
    seen = view(node(1), table=table, record=step.record.entries)
    assert plan_route_step(seen) == CreateRoute(FIRST, "web-1")
    assert isinstance(
        plan_route_step(view(node(1), table=table, pod_networks=("10.9.0.0/16",))), SetCondition
    )


@pytest.mark.parametrize("routes", [(FIRST,), ()], ids=["a route", "a pair"])
def test_a_part_of_a_recorded_route_is_deleted_and_another_one_is_not(routes: tuple[Route, ...]):
    gone = InstanceLookup(answer=NotFound(), **ANSWERED)
    table = partial_table(FIRST, SECOND, routes=routes)
    seen = view(table=table, record=(recorded(FIRST, "9"),), lookups={"9": gone})
    step = plan_route_step(seen)
    assert isinstance(step, DeleteRoute)
    assert step.route == FIRST
    assert isinstance(plan_route_step(view(table=table)), Wait)


def test_a_full_network_takes_the_rest_of_a_route_and_no_other():
    records = (recorded(FIRST, "1", is_attempt=True), recorded(SECOND, "2", is_attempt=True))
    table = partial_table(SECOND, routes=(SECOND,), limit=1)
    assert plan_route_step(view(node(1), node(2), table=table, record=records)) == CreateRoute(
        SECOND, "web-2"
    )


def test_a_limit_that_the_cloud_does_not_tell_stops_no_route():
    records = (recorded(FIRST, "1", is_attempt=True),)
    assert plan_route_step(view(node(1), limit=None, record=records)) == CreateRoute(FIRST, "web-1")


def test_a_family_without_an_address_of_the_instance_is_named_and_the_other_one_routed():
    dual = node(1, "10.244.1.0/24", "fd00:1::/64")
    fields: Mapping[str, Any] = {
        "find_gateway": lambda instance, destination: "" if ":" in destination else "10.0.1.1",
        "pod_networks": ("10.244.0.0/16", "fd00::/16"),
    }
    records = (recorded(FIRST, "1", is_attempt=True),)
    assert plan_route_step(view(dual, record=records, **fields)) == CreateRoute(FIRST, "web-1")
    problem = find_problem(plan_route_step(view(dual, routes=(FIRST,), record=records, **fields)))
    assert problem == "Instance 1 has no address for fd00:1::/64 at network 4711"


# ---- a kubelet may register its Node with any pod CIDR


@pytest.mark.parametrize("claimed", ["0.0.0.0/0", "10.0.0.0/8", "192.168.0.0/16", "10.245.1.0/24"])
def test_no_route_leaves_the_pod_networks(claimed: str):
    problem = find_problem(plan_route_step(view(node(1, claimed))))
    assert problem == (
        f"No route for {claimed}: it is outside the pod networks of the cluster, 10.244.0.0/16"
    )


@pytest.mark.parametrize("claimed", ["10.244.1.0/25", "10.244.0.0/16", "10.244.1.7/32"])
def test_no_route_leads_to_the_addresses_of_another(claimed: str):
    records = (recorded(FIRST, "1"),)
    step = plan_route_step(view(routed(1), node(2, claimed), routes=(FIRST,), record=records))
    assert find_problem(step) == f"No route for {claimed}: an earlier route exists: {FIRST}"


def test_a_node_that_claims_all_pod_networks_is_named_on_those_that_get_no_route():
    wide = Route("10.244.0.0/16", "10.0.1.1")
    hostile = node(1, wide.destination, conditions=routed(1).status.conditions)
    seen = view(
        hostile, node(2), routes=(wide,), record=(recorded(wide, "1"),), unwritable_uids=frozenset({"uid-1"})
    )
    assert find_problem(plan_route_step(seen)) == (
        f"No route for 10.244.2.0/24: an earlier route exists: {wide}"
    )


def test_a_default_route_of_another_owner_is_in_no_ones_way():
    default = Route("0.0.0.0/0", "10.0.0.9")
    assert isinstance(plan_route_step(view(node(1), routes=(default,))), WriteRecord)


def test_of_two_nodes_with_one_pod_cidr_the_older_one_gets_the_route():
    claim = (recorded(FIRST, "1", is_attempt=True),)
    step = plan_route_step(view(node(2, FIRST.destination), node(1), record=claim))
    assert step == CreateRoute(FIRST, "web-1")


@pytest.mark.parametrize("provider_id", ["hcloud://2", "other://2"])
def test_a_node_that_claims_the_pod_cidr_of_another_takes_no_route_while_that_one_is_not_listed(
    provider_id: str,
):
    claiming = node(2, "10.244.1.0/24")
    claiming = msgspec.structs.replace(
        claiming, spec=msgspec.structs.replace(claiming.spec, provider_id=provider_id)
    )
    for nodes in ((claiming, node(1)), (node(1), claiming)):
        seen = view(
            *nodes,
            routes=(FIRST,),
            record=(recorded(FIRST, "1"),),
            listing=list_instances(2, 3),
            parse_provider_id=lambda text: text.removeprefix("hcloud://") if "hcloud" in text else None,
            unwritable_uids=frozenset({"uid-2"}),
        )
        assert isinstance(plan_route_step(seen), Wait)


def test_while_the_pod_networks_are_unknown_nothing_is_created_and_existing_routes_count():
    waits = plan_route_step(view(node(1), pod_networks=()))
    assert isinstance(waits, Wait)
    assert "the pod networks of the cluster are not known yet" in waits.problem
    known = view(node(1), routes=(FIRST,), record=(recorded(FIRST, "1"),), pod_networks=())
    assert isinstance(plan_route_step(known), SetCondition)


def test_a_route_that_exists_stays_when_the_pod_networks_change():
    known = view(routed(1), routes=(FIRST,), record=(recorded(FIRST, "1"),), pod_networks=("10.99.0.0/16",))
    assert isinstance(plan_route_step(known), Wait)


def test_a_node_of_another_account_does_not_count_as_blocked():
    waits = plan_route_step(view(node(9)))
    assert isinstance(waits, Wait)
    assert waits.blocked == 0


# ---- rejections


def test_a_cause_of_all_routes_stops_all_creates_and_is_told_on_each_node():
    pause = RoutePause(until=NOW + timedelta(seconds=40), reason="the cloud rejects it: token_readonly")
    step = plan_route_step(view(node(1), node(2), create_pause=pause))
    assert find_problem(step) == f"No route for 10.244.1.0/24: {pause.reason}"
    everywhere = frozenset({"uid-1", "uid-2"})
    waits = plan_route_step(view(node(1), node(2), create_pause=pause, unwritable_uids=everywhere))
    assert waits == Wait(until=pause.until, blocked=2)


def test_a_network_without_room_does_not_keep_a_route_that_exists_from_its_rest():
    records = (recorded(FIRST, "1", is_attempt=True), recorded(SECOND, "2", is_attempt=True))
    table = partial_table(SECOND, routes=(SECOND,), limit=None)
    seen = view(node(1), node(2), table=table, record=records)
    assert plan_route_step(seen) == CreateRoute(SECOND, "web-2"), "it comes before the new one"
    pause = RoutePause(until=NOW + timedelta(seconds=40), reason="full", is_limit=True)
    full = msgspec.structs.replace(seen, create_pause=pause)
    assert plan_route_step(full) == CreateRoute(SECOND, "web-2")
    told = plan_route_step(msgspec.structs.replace(full, record=RouteRecord(), pod_networks=("10.9.0.0/16",)))
    assert "outside the pod networks" in find_problem(told), "and not that the network is full"


def test_a_pod_cidr_of_a_node_that_the_account_does_not_list_keeps_the_route_of_no_gone_instance():
    entry = recorded(FIRST, "9")
    other = msgspec.structs.replace(
        node(1), spec=msgspec.structs.replace(node(1).spec, provider_id="hcloud://77")
    )
    seen = view(other, routes=(FIRST,), record=(entry,))
    assert plan_route_step(seen) == LookUpInstance("9")
    gone = {"9": InstanceLookup(answer=NotFound(), **ANSWERED)}
    assert isinstance(plan_route_step(msgspec.structs.replace(seen, lookups=gone)), DeleteRoute)
    own = view(other, routes=(FIRST,), record=(recorded(FIRST, "77"),), lookups={"77": gone["9"]})
    assert isinstance(plan_route_step(own), Wait), "its own Node exists"


def test_a_cause_of_all_creates_stops_no_deletion():
    pause = RoutePause(until=NOW + timedelta(seconds=40), reason="full")
    lookups = {"9": InstanceLookup(answer=NotFound(), **ANSWERED)}
    entry = recorded(Route("10.244.9.0/24", "10.0.1.9"), "9")
    step = plan_route_step(
        view(routes=(entry.route,), record=(entry,), lookups=lookups, create_pause=pause)
    )  # fmt: skip
    assert isinstance(step, DeleteRoute)


# ---- an address that a later instance has


def test_a_route_that_leads_to_a_later_instance_is_recorded_for_it():
    step = plan_route_step(view(node(1), routes=(FIRST,), record=(recorded(FIRST, "9"),)))
    assert step == WriteRecord(RouteRecord(entries=(recorded(FIRST, "1"),)))


def test_it_stays_while_that_instance_exists_and_the_former_is_gone():
    exists = Instance(id="1", name="web-1", is_shut_down=False, addresses=())
    lookups = {"1": InstanceLookup(answer=exists, **ANSWERED)}
    seen = view(routes=(FIRST,), record=(recorded(FIRST, "1"),), lookups=lookups)
    assert isinstance(plan_route_step(seen), Wait)
    assert plan_route_step(msgspec.structs.replace(seen, lookups={})) == LookUpInstance("1")


# ---- the record


def test_a_record_counts_only_in_the_config_map_that_it_was_written_to():
    record = RouteRecord(entries=(recorded(FIRST, "1"),))
    text = encode_route_record(record, "uid-map")
    assert read_route_record(text, "uid-map") == record
    assert read_route_record(text, "uid-restored") == RouteRecord(), "a backup proves nothing"
    assert read_route_record("", "uid-map") == RouteRecord()
    for unreadable in ("{", "[]", '{"entries": []}', text[:-1]):
        assert read_route_record(unreadable, "uid-map") is None


def test_an_impossible_deadline_in_a_record_stops_no_other_route():
    deadline = datetime.max.replace(tzinfo=UTC)
    entry = RecordedRoute(route=SECOND, instance_id="2", create_deadline=deadline)
    step = plan_route_step(view(node(1), record=(entry,)))
    assert isinstance(step, WriteRecord)


def test_a_record_that_could_not_be_read_again_is_not_written():
    many = tuple(recorded(Route(f"10.{i // 256}.{i % 256}.0/24", "10.0.1.1"), "1") for i in range(9000))
    assert read_route_record(encode_route_record(RouteRecord(entries=many[:3000]), "u"), "u") is not None
    with pytest.raises(ValueError, match="9000 routes is too long"):
        encode_route_record(RouteRecord(entries=many), "u")


# ---- destinations


@pytest.mark.parametrize("written", ["010.244.1.0/24", "10.244.1.0/024", "10.244.001.7/24"])
def test_a_pod_cidr_as_only_kubernetes_writes_it_needs_the_same_route(written: str):
    recorded_first = plan_route_step(view(node(1, written)))
    assert recorded_first == plan_route_step(view(node(1, "10.244.1.0/24")))
    assert isinstance(recorded_first, WriteRecord)


def test_destinations_are_compared_by_family_and_never_fail():
    assert is_inside_any("10.244.1.0/24", ("fd00::/48", "10.244.3.9/16"))
    assert not is_inside_any("10.244.0.0/15", ("10.244.0.0/16",))
    assert is_inside_any("fd00:0:0:2::/64", ("10.244.0.0/16", "fd00::/48"))
    assert not is_inside_any("none", ("10.244.0.0/16",))
    assert [each for each in ("10.244.0.0/16", "10.244.0.1/16", "0.0.0.0/0", "x") if is_network(each)] == [
        "10.244.0.0/16"
    ]


NETWORKS = st.builds(
    lambda number, length: str(ip_network((number << (32 - 4), length), strict=False)),
    st.integers(0, 15),
    st.integers(1, 8),
)


@given(st.frozensets(NETWORKS, max_size=8), NETWORKS)
def test_the_index_finds_a_route_in_the_way_if_there_is_one(existing: frozenset[str], wanted: str):
    others = frozenset({"0.0.0.0/0", "fd00::/8", "none"})
    index = index_routes(frozenset(Route(each, "10.0.1.1") for each in existing | others))
    found = index.find_overlapping(wanted)
    overlapping = {each for each in existing if ip_network(each).overlaps(ip_network(wanted))}
    assert (found.destination in overlapping) if found is not None else not overlapping
    assert index.find_overlapping("none") is None


def test_a_plan_for_thousands_of_nodes_is_no_burden():
    """It runs in the event loop with the Lease. Without the index it took seconds."""
    nodes = [node(number, f"10.{number // 256}.{number % 256}.0/24") for number in range(2000)]
    routes = tuple(Route(f"10.200.{number}.0/24", "10.0.1.1") for number in range(100))
    seen = view(
        *nodes,
        routes=routes,
        pod_networks=("10.0.0.0/8",),
        listing=list_instances(*range(2000)),
        unwritable_uids=frozenset(each.uid for each in nodes),
    )
    plan_route_step(seen)
    began = time.process_time()
    waits = plan_route_step(seen)
    assert time.process_time() - began < 0.5
    assert isinstance(waits, Wait)
    assert waits.blocked == 2000


@pytest.mark.parametrize("seconds", [1, 61, 600])
def test_a_network_that_is_slow_to_answer_is_read_once(seconds: float):
    times: Any = {"began_at": NOW, "ended_at": NOW + timedelta(seconds=seconds), "generation": 1}
    table = TableAnswer(answer=RouteTable(routes=frozenset({FIRST}), limit=100), **times)
    listing = InstanceListing(answer=list_instances(1).answer, **times)
    record = (recorded(FIRST, "1"),)
    step = plan_route_step(view(routed(1), record=record, table=table, listing=listing, now=table.ended_at))
    assert step == Wait(until=table.ended_at + timedelta(seconds=60 + 2 * seconds))


def test_an_instance_that_is_slow_to_be_found_is_asked_for_once():
    created = msgspec.structs.replace(node(9).metadata, creation_timestamp=NOW)
    joining = msgspec.structs.replace(node(9), metadata=created)
    later = NOW + timedelta(seconds=25)
    lookup = InstanceLookup(answer=NotFound(), began_at=NOW, ended_at=later, generation=1)
    step = plan_route_step(view(joining, lookups={"9": lookup}, now=later))
    assert isinstance(step, Wait)
