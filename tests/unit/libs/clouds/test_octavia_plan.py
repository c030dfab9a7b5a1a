"""Plans of load balancers at OpenStack: what is left alone, and what comes first."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.clouds.balancers import Balancer, BalancerRequest, InvalidField, Owner, Port, Target
from libs.clouds.openstack.balancers.annotations import INTERNAL, PREFIX
from libs.clouds.openstack.balancers.desired import DesiredBalancer, read_request
from libs.clouds.openstack.balancers.documents import (
    FloatingIp,
    HealthMonitor,
    Listener,
    LoadBalancer,
    Member,
    ObservedBalancer,
    ObservedPool,
    Pool,
    Reference,
    SessionPersistence,
)
from libs.clouds.openstack.balancers.ownership import (
    build_description,
    build_port_tag,
    build_tags,
    has_foreign_tags,
    read_description,
    read_tags,
)
from libs.clouds.openstack.balancers.plan import (
    build_balancer,
    build_creation,
    build_ingress,
    build_remnant,
    plan_adoption,
    plan_changes,
    plan_release,
    release_address,
)
from tests.builders import NOW

OWNER = Owner(cluster_uid="cluster-1", service_uid="service-1", account="prod")
TAGS = build_tags(OWNER)
TARGETS = (Target(address="10.0.0.1"), Target(address="10.0.0.2"))
PLACE = {"subnet-id": "5c1a7b4e-0000-4000-8000-000000000001"}
PUBLIC = PLACE | {"floating-network-id": "5c1a7b4e-0000-4000-8000-000000000002"}
PORT = "5c1a7b4e-0000-4000-8000-000000000003"


def desire(
    *numbers: int, annotations: dict[str, str] | None = None, keys: dict[str, str] = PUBLIC, **fields: Any
) -> DesiredBalancer:
    ports = tuple(
        Port(name=f"p-{each}", protocol="TCP", port=each, node_port=30000 + each) for each in numbers or (80,)
    )
    fields = {"annotations": annotations or {}, "ports": ports} | fields
    request = BalancerRequest(namespace="default", name="web", uid="u", **fields)
    return read_request(request, {"": keys}).desired


def internal(*numbers: int, **annotations: str) -> DesiredBalancer:
    named = {PREFIX + name.replace("_", "-"): text for name, text in annotations.items()}
    return desire(*numbers, annotations={INTERNAL: "true"} | named)


def observe(
    desired: DesiredBalancer, targets: tuple[Target, ...] = TARGETS, **changes: Any
) -> ObservedBalancer:
    """The balancer that a creation makes, as Octavia shows it."""
    body: dict[str, Any] = msgspec.to_builtins(build_creation(desired, targets, OWNER))
    here = (Reference("lb"),)
    listeners, pools = [], []
    for number, listener in enumerate(body["listeners"]):
        pool = listener.pop("default_pool")
        members, monitor = pool.pop("members"), pool.pop("healthmonitor", None)
        shown = Pool(
            id=f"pool-{number}",
            protocol=pool["protocol"],
            lb_algorithm=pool["lb_algorithm"],
            session_persistence=msgspec.convert(pool.get("session_persistence"), SessionPersistence | None),
            loadbalancers=here,
            members=tuple(Reference(f"m-{each['address']}") for each in members),
            updated_at=None,
            tags=tuple(pool["tags"]),
        )
        seen = None
        if monitor is not None:
            fields = {name: value for name, value in monitor.items() if name != "tags"}
            seen = HealthMonitor(id=f"monitor-{number}", pools=(Reference(shown.id),), **fields)
        addressed = tuple(
            Member(id=f"m-{each['address']}", **{name: each[name] for name in each if name != "tags"})
            for each in members
        )
        pools.append(ObservedPool(pool=shown, members=addressed, monitor=seen))
        fields = {"allowed_cidrs": None}
        fields |= {name: value for name, value in listener.items() if name not in {"name", "tags"}}
        tags = tuple(listener["tags"])
        listeners.append(
            Listener(
                id=f"listener-{number}", loadbalancers=here, default_pool_id=shown.id, tags=tags, **fields
            )
        )
    balancer = LoadBalancer(
        id="lb",
        name="x",
        project_id="p",
        created_at=NOW.replace(tzinfo=None),
        provisioning_status="ACTIVE",
        vip_address="10.0.0.99",
        vip_port_id=PORT,
        tags=TAGS,
        listeners=tuple(Reference(each.id) for each in listeners),
    )
    observed = ObservedBalancer(balancer=balancer, listeners=tuple(listeners), pools=tuple(pools))
    return msgspec.structs.replace(observed, **changes)


def make_address(number: int = 1, **fields: Any) -> FloatingIp:
    defaults: dict[str, Any] = {
        "id": f"fip-{number}",
        "project_id": "p",
        "floating_ip_address": f"203.0.113.{number}",
        "floating_network_id": "net",
        "port_id": PORT,
        "description": build_description(OWNER),
        "created_at": NOW,
    }
    return FloatingIp(**(defaults | fields))


def plan(desired: DesiredBalancer, observed: ObservedBalancer, *targets: Target) -> list[str]:
    changes = plan_changes(desired, targets or TARGETS, build_balancer(observed))
    return [f"{each.method} {each.path.removeprefix('/lbaas')}" for each in changes]


def test_what_a_creation_makes_needs_no_change():
    for desired in (
        internal(80, 443),
        internal(80, proxy_protocol="v1"),
        internal(80, x_forwarded_for="true"),
    ):
        assert plan(desired, observe(desired)) == []


def test_closed_ports_and_narrower_ranges_come_first():
    observed = observe(internal(80, 443))
    desired = desire(443, 8080, annotations={INTERNAL: "true"}, source_ranges=("192.0.2.0/24",))
    assert plan(desired, observed)[:3] == [
        "DELETE /listeners/listener-0",
        "PUT /listeners/listener-1",
        "POST /pools",
    ]


def test_a_port_opens_only_when_its_monitor_is_there():
    observed = observe(internal(80))
    tag = build_port_tag("TCP-443")
    bare = msgspec.structs.replace(observed.pools[0].pool, id="new", tags=(*TAGS, tag), members=())
    grown = msgspec.structs.replace(
        observed, pools=(*observed.pools, ObservedPool(pool=bare, members=(), monitor=None))
    )
    assert plan(internal(80, 443), grown) == ["PUT /pools/new/members", "POST /healthmonitors"]


@pytest.mark.parametrize(("before", "after"), [(0, 32000), (32000, 0)])
def test_members_get_their_port_of_checks_after_the_former_monitor_and_before_the_next(
    before: int, after: int
):
    """The next one would find no member alive at the former port."""
    kind = {INTERNAL: "true"}
    observed = observe(desire(80, annotations=kind, health_check_node_port=before))
    desired = desire(80, annotations=kind, health_check_node_port=after)
    assert plan(desired, observed) == ["DELETE /healthmonitors/monitor-0", "PUT /pools/pool-0/members"]
    [pool] = observed.pools
    bare = msgspec.structs.replace(observed, pools=(msgspec.structs.replace(pool, monitor=None),))
    assert plan(desired, bare) == ["PUT /pools/pool-0/members", "POST /healthmonitors"]


def test_the_weight_of_a_member_that_another_client_changed_is_restored():
    desired = internal(80)
    observed = observe(desired)
    [pool] = observed.pools
    drained = tuple(msgspec.structs.replace(each, weight=0) for each in pool.members)
    pools = (msgspec.structs.replace(pool, members=drained),)
    observed = msgspec.structs.replace(observed, pools=pools)
    assert plan(desired, observed) == ["PUT /pools/pool-0/members"]
    [change] = plan_changes(desired, TARGETS, build_balancer(observed))
    assert {each["weight"] for each in msgspec.json.decode(change.body)["members"]} == {1}


def test_an_invalid_field_opens_nothing_and_changes_its_own_field_only():
    observed = observe(internal(80))
    desired = internal(80, 443, connection_limit="many", timeout_client_data="1")
    [change] = plan_changes(desired, TARGETS, build_balancer(observed))
    assert msgspec.json.decode(change.body) == {"listener": {"timeout_client_data": 1}}


def test_an_unreadable_range_leaves_the_ranges_of_a_port():
    observed = observe(desire(80, annotations={INTERNAL: "true"}, source_ranges=("192.0.2.0/24",)))
    for ranges in (("everybody",), ("::/0",), ("2001:db8::/32", "::/0")):  # an empty list would allow all
        desired = desire(80, annotations={INTERNAL: "true"}, source_ranges=ranges)
        assert plan(desired, observed) == []
        assert not desired.may_open_ports


SUBNET = "5c1a7b4e-0000-4000-8000-000000000007"
OTHER_SUBNET = "5c1a7b4e-0000-4000-8000-000000000008"


def plan_members(observed: ObservedBalancer, *targets: Target) -> dict[str, tuple[int, str]]:
    """NodePort and subnet of each member after the change, where the annotation is no id."""
    desired = internal(80, member_subnet_id="nodes")
    moved = msgspec.structs.replace(desired.listeners[0].pool, member_port=31000)
    listener = msgspec.structs.replace(desired.listeners[0], pool=moved)
    changed = msgspec.structs.replace(desired, listeners=(listener,))
    [change] = plan_changes(changed, targets, build_balancer(observed))
    members = msgspec.json.decode(change.body)["members"]
    return {each["address"]: (each["protocol_port"], each["subnet_id"] or "") for each in members}


@pytest.mark.parametrize("subnet", ["", SUBNET])
def test_an_invalid_subnet_of_members_keeps_theirs_and_the_node_port_follows(subnet: str):
    values = {"member_subnet_id": subnet} if subnet else {}
    observed = observe(internal(80, **values))
    third = Target(address="10.0.0.3")
    expected = (31000, subnet)
    assert plan_members(observed, TARGETS[0], third) == {"10.0.0.1": expected, "10.0.0.3": expected}


def test_where_members_have_several_subnets_a_new_one_waits_for_a_valid_value():
    [pool] = observe(internal(80, member_subnet_id=SUBNET)).pools
    first, second = pool.members
    mixed = (first, msgspec.structs.replace(second, subnet_id=OTHER_SUBNET))
    observed = observe(internal(80), pools=(msgspec.structs.replace(pool, members=mixed),))
    found = plan_members(observed, *TARGETS, Target(address="10.0.0.3"))
    assert found == {"10.0.0.1": (31000, SUBNET), "10.0.0.2": (31000, OTHER_SUBNET)}


def test_without_the_keys_of_the_file_nothing_that_they_describe_changes():
    keys = {**PUBLIC, "internal-lb": "true", "create-monitor": "false", "lb-method": "SOURCE_IP"}
    observed = observe(desire(80, keys=keys))
    request = BalancerRequest(
        namespace="default",
        name="web",
        uid="u",
        annotations={PREFIX + "class": "removed"},
        ports=(Port(name="p-80", protocol="TCP", port=80, node_port=30080),),
    )
    incomplete = msgspec.structs.replace(request, annotations={})
    for parsed in (
        read_request(request, {"": PUBLIC}),
        read_request(incomplete, {"": PUBLIC}, is_complete=False),
    ):
        balancer = build_balancer(observed)
        assert plan_changes(parsed.desired, TARGETS, balancer) == ()
        assert build_ingress(parsed.desired, balancer) is None
        assert parsed.node_selector is None


def test_a_port_that_is_open_to_all_names_no_networks():
    """The provider OVN rejects a port with any value of it."""
    for ranges, body in (
        ((), {}),
        (("0.0.0.0/0",), {}),
        (("0.0.0.0/0", "::/0"), {}),
        (("192.0.2.0/24",), {"allowed_cidrs": ["192.0.2.0/24"]}),
        (("192.0.2.0/24", "2001:db8::/32"), {"allowed_cidrs": ["192.0.2.0/24"]}),
    ):
        desired = desire(80, annotations={INTERNAL: "true"}, source_ranges=ranges)
        created: dict[str, Any] = msgspec.to_builtins(build_creation(desired, TARGETS, OWNER))
        [listener] = created["listeners"]
        assert {name: listener[name] for name in listener if name == "allowed_cidrs"} == body


def test_octavia_gets_a_range_once_since_it_stores_it_once():
    desired = desire(80, annotations={INTERNAL: "true"}, source_ranges=("192.0.2.0/24", " 192.0.2.0/24"))
    created: dict[str, Any] = msgspec.to_builtins(build_creation(desired, TARGETS, OWNER))
    assert created["listeners"][0]["allowed_cidrs"] == ["192.0.2.0/24"]


MOVED = (TARGETS[0], Target(address="10.0.0.3"))


def desire_sctp() -> DesiredBalancer:
    port = Port(name="p-80", protocol="SCTP", port=80, node_port=30080)
    return desire(80, annotations={INTERNAL: "true"}, ports=(port,))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (internal(80, x_forwarded_for="true"), internal(80, x_forwarded_for="maybe")),
        (internal(80), internal(80, x_forwarded_for="true", connection_limit="many")),
        (internal(80), desire_sctp()),
    ],
)
def test_a_port_that_an_invalid_field_keeps_open_follows_the_nodes(
    before: DesiredBalancer, after: DesiredBalancer
):
    assert plan(after, observe(before)) == []
    [change] = plan_changes(after, MOVED, build_balancer(observe(before)))
    members = msgspec.json.decode(change.body)["members"]
    assert [(each["address"], each["protocol_port"]) for each in members] == [
        (each.address, 30080) for each in MOVED
    ]


def add_pool(observed: ObservedBalancer, desired: DesiredBalancer, *targets: Target) -> ObservedBalancer:
    """The balancer with the next pool of its port."""
    [later] = observe(desired, targets).pools
    pool = msgspec.structs.replace(later, pool=msgspec.structs.replace(later.pool, id="next"))
    return msgspec.structs.replace(observed, pools=(*observed.pools, pool))


@pytest.mark.parametrize("name", ["proxy_protocol", "x_forwarded_for"])
def test_a_port_leaves_its_members_only_for_a_pool_that_has_some(name: str):
    observed, desired = observe(internal(80)), internal(80, **{name: "true"})
    assert plan(desired, observed) == ["POST /pools"]
    empty = add_pool(observed, desired)
    assert plan(desired, empty) == ["PUT /pools/next/members"]
    [_, bare] = add_pool(observed, desired, *TARGETS).pools
    unchecked = msgspec.structs.replace(
        observed, pools=(*observed.pools, msgspec.structs.replace(bare, monitor=None))
    )
    assert plan(desired, unchecked) == ["POST /healthmonitors"]
    moves = {
        "proxy_protocol": "PUT /listeners/listener-0",
        "x_forwarded_for": "DELETE /listeners/listener-0",
    }
    assert plan(desired, add_pool(observed, desired, *TARGETS)) == [moves[name]]


def test_clients_stay_at_their_node_where_the_service_asks_for_it():
    kind = {INTERNAL: "true"}
    kept, free = desire(80, annotations=kind, keeps_clients=True), desire(80, annotations=kind)
    assert plan(kept, observe(kept)) == plan(free, observe(free)) == []
    bodies = [
        msgspec.json.decode(change.body)["pool"]
        for desired, observed in ((kept, observe(free)), (free, observe(kept)))
        for change in plan_changes(desired, TARGETS, build_balancer(observed))
    ]
    assert bodies == [{"session_persistence": {"type": "SOURCE_IP"}}, {"session_persistence": None}]


def test_a_port_that_waits_for_its_next_pool_is_restricted_at_once():
    headers = {INTERNAL: "true", PREFIX + "x-forwarded-for": "true"}
    desired = desire(80, annotations=headers, source_ranges=("192.0.2.0/24",))
    assert plan(desired, observe(internal(80)))[0] == "PUT /listeners/listener-0"


def test_parts_without_our_tags_are_not_there_for_a_plan():
    observed = observe(internal(80))
    foreign = msgspec.structs.replace(observed.balancer, tags=("team-a",))
    balancer = build_balancer(msgspec.structs.replace(observed, balancer=foreign))
    assert (balancer.owner, plan_changes(internal(80), TARGETS, balancer)) == (None, ())


def test_an_address_is_created_at_the_port_once():
    desired = desire(80)
    observed = observe(desired)
    assert plan(desired, observed) == ["POST /floatingips"]
    one = msgspec.structs.replace(observed, floating_ips=(make_address(),))
    assert plan(desired, one) == []
    two = msgspec.structs.replace(observed, floating_ips=(make_address(1), make_address(2, port_id=None)))
    assert plan(desired, two) == ["DELETE /floatingips/fip-2"]
    lost = msgspec.structs.replace(observed, floating_ips=(make_address(port_id=None),))
    assert plan(desired, lost) == ["PUT /floatingips/fip-1"]


def test_every_change_of_an_address_names_the_revision_that_was_read():
    desired = msgspec.structs.replace(desire(80), reserved_address="203.0.113.9", reserved_id="fip-9")
    free = make_address(9, description="of a user", port_id=None, revision_number=3)
    [claim] = plan_changes(desired, TARGETS, build_balancer(observe(desired, floating_ips=(free,))))
    own = make_address(revision_number=4)
    releases = [release_address(own, PORT, keeps_address=each) for each in (False, True)]
    assert [each.revision for each in (claim, *releases)] == [3, 4, 4]


def test_an_address_of_ours_that_the_service_names_stays_from_then_on():
    desired = msgspec.structs.replace(desire(80), reserved_address="203.0.113.1", reserved_id="fip-1")
    [change] = plan_changes(
        desired, TARGETS, build_balancer(observe(desired, floating_ips=(make_address(),)))
    )
    reserved = msgspec.json.decode(change.body)["floatingip"]["description"]
    address = make_address(description=reserved)
    assert plan(desired, observe(desired, floating_ips=(address,))) == []
    assert release_address(address, PORT, keeps_address=False).method == "PUT"


def test_a_reserved_address_outlives_its_balancer_and_a_created_one_where_it_is_kept():
    reserved = make_address(9, description=build_description(OWNER, text="shop", is_reserved=True))
    balancer = build_balancer(observe(desire(80), floating_ips=(make_address(), reserved)))
    assert balancer.kept_objects == ("floating address 203.0.113.9",)
    assert balancer.created_addresses == ("floating address 203.0.113.1",)
    remnant = build_remnant(make_address(port_id=None), OWNER)
    assert (remnant.kept_objects, remnant.created_addresses) == ((), balancer.created_addresses)


OTHER_PORT = "5c1a7b4e-0000-4000-8000-000000000009"


@pytest.mark.parametrize("is_reserved", [False, True])
def test_an_address_that_a_user_moved_to_another_port_is_left_there_and_reported(is_reserved: bool):
    description = build_description(OWNER, text="shop" if is_reserved else "", is_reserved=is_reserved)
    moved = make_address(port_id=OTHER_PORT, description=description)
    fields = {"reserved_address": "203.0.113.1", "reserved_id": "fip-1"} if is_reserved else {}
    desired = msgspec.structs.replace(desire(80), **fields)
    observed = observe(desired, floating_ips=(moved,))
    assert plan(desired, observed) == []
    balancer = build_balancer(observed)
    [warning] = balancer.warnings
    assert OTHER_PORT in warning
    assert build_ingress(desired, balancer) == ()
    back = msgspec.structs.replace(observed, floating_ips=(make_address(description=description),))
    assert build_balancer(back).warnings == ()
    assert plan(desired, back) == []


def test_an_address_at_another_port_only_loses_its_tags():
    moved = make_address(port_id=OTHER_PORT)
    observed = observe(internal(80), floating_ips=(moved,))
    [change] = plan_changes(internal(80), TARGETS, build_balancer(observed))
    assert msgspec.json.decode(change.body) == {"floatingip": {"description": ""}}
    for keeps_address in (False, True):
        release = release_address(moved, None, keeps_address=keeps_address)  # of a remnant
        assert release == change
    both = observe(desire(80), floating_ips=(make_address(1), make_address(2, port_id=OTHER_PORT)))
    [untag] = plan_changes(desire(80), TARGETS, build_balancer(both))
    assert (untag.path, msgspec.json.decode(untag.body)) == (
        "/floatingips/fip-2",
        {"floatingip": {"description": ""}},
    )


def test_an_address_of_another_service_is_neither_used_nor_deleted():
    others = (
        make_address(1, description=build_description(msgspec.structs.replace(OWNER, service_uid="other"))),
        make_address(2, description=build_description(msgspec.structs.replace(OWNER, account="other"))),
        make_address(3, description="of a user"),
    )
    observed = observe(desire(80), floating_ips=others)
    assert plan(desire(80), observed) == ["POST /floatingips"]
    assert build_ingress(desire(80), build_balancer(observed)) == ()
    assert plan(internal(80), observed) == []


def test_a_reserved_address_that_was_taken_meanwhile_is_left_where_it_is():
    desired = msgspec.structs.replace(desire(80), reserved_address="203.0.113.9", reserved_id="fip-9")
    taken = make_address(9, description="of a user", port_id="5c1a7b4e-0000-4000-8000-000000000009")
    assert plan(desired, observe(desired, floating_ips=(taken,))) == []


def test_an_internal_service_gives_its_floating_address_back():
    observed = observe(desire(80), floating_ips=(make_address(),))
    assert plan(internal(80), observed) == ["DELETE /floatingips/fip-1"]
    assert plan(internal(80, keep_floatingip="true"), observed) == ["PUT /floatingips/fip-1"]
    assert plan(internal(80, keep_floatingip="sure"), observed) == []  # it may have to stay


def test_there_is_no_address_while_octavia_builds_the_balancer_for_the_first_time():
    observed = observe(internal(80))
    for status, addresses in (("PENDING_CREATE", 0), ("ACTIVE", 1), ("PENDING_UPDATE", 1), ("ERROR", 1)):
        balancer = msgspec.structs.replace(observed.balancer, provisioning_status=status)
        shown = build_balancer(msgspec.structs.replace(observed, balancer=balancer))
        assert len(build_ingress(internal(80), shown) or ()) == addresses


def test_a_release_ends_with_the_tags():
    balancer = build_balancer(observe(desire(80), floating_ips=(make_address(),)))
    *first, last = plan_release(balancer, keeps_address=False)
    assert [each.method for each in first] == ["DELETE", "DELETE"]
    assert msgspec.json.decode(last.body) == {"loadbalancer": {"tags": []}}


def test_a_balancer_with_listeners_is_not_taken_over():
    observed = observe(internal(80))
    free = msgspec.structs.replace(observed.balancer, tags=("team-a",))
    used = build_balancer(msgspec.structs.replace(observed, balancer=free))
    assert isinstance(plan_adoption(used, OWNER), InvalidField)


def test_a_balancer_that_has_failed_gets_no_address_and_loses_one_that_is_not_wanted():
    observed = observe(desire(80))
    broken = msgspec.structs.replace(observed.balancer, provisioning_status="ERROR")
    failed = msgspec.structs.replace(observed, balancer=broken)
    assert build_balancer(failed).has_failed
    assert plan(desire(443), failed) == []
    left = msgspec.structs.replace(failed, floating_ips=(make_address(port_id=None),))
    assert plan(desire(80), left) == []
    bound = msgspec.structs.replace(failed, floating_ips=(make_address(),))
    assert plan(desire(80), bound) == []
    assert plan(internal(80), bound) == ["DELETE /floatingips/fip-1"]


def test_a_part_of_our_tags_or_a_tag_of_the_native_controller_is_foreign():
    assert not has_foreign_tags((*TAGS, "team-a"))
    assert has_foreign_tags(TAGS[:1])
    assert has_foreign_tags(TAGS[:2])  # without the account
    assert has_foreign_tags((*TAGS, "kube_service_kubernetes_default_web"))
    assert has_foreign_tags((*TAGS, "talos-ccm/cluster=other"))
    assert read_tags((*TAGS, "talos-ccm/cluster=other")) is None


@given(text=st.text(max_size=60))
def test_the_description_of_a_reserved_address_comes_back(text: str):
    shown = text.strip()
    known = read_description(build_description(OWNER, text=shown, is_reserved=True))
    assert known is not None
    assert (known.owner, known.is_reserved, known.text) == (OWNER, True, shown)


def test_busy_and_targets_are_those_that_octavia_shows():
    observed = observe(internal(80))
    pending = msgspec.structs.replace(observed.balancer, provisioning_status="PENDING_UPDATE")
    balancer: Balancer = build_balancer(msgspec.structs.replace(observed, balancer=pending))
    assert (balancer.is_busy, balancer.targets, balancer.owner) == (True, TARGETS, OWNER)
    assert balancer.busy_since == balancer.created_at
    changed = msgspec.structs.replace(pending, updated_at=datetime.fromisoformat("2026-11-29T03:00:00"))
    again = build_balancer(msgspec.structs.replace(observed, balancer=changed))
    assert again.busy_since == datetime(2026, 11, 29, 3, tzinfo=UTC)
    assert build_balancer(observed).busy_since is None
