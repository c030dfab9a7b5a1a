"""The labeler's own writes: the newest view, echoes that are not planned, and replicas with other rules."""

from typing import Any

import msgspec
import pytest

from libs.common.contract.events import NodeEnriched
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import (
    FIELD_OWNERSHIP_ANNOTATION,
    Node,
    NodeAddress,
    NodeCondition,
    Taint,
)
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.own_writes import (
    ENTRY_TTL_SECONDS,
    ROLLOUT_SECONDS,
    OwnWrites,
    ReplicaConflicts,
    is_result_of,
)
from services.labeler.core.plan.plan import ClusterConfig
from tests.builders import UNINITIALIZED, make_facts, make_node, make_node_enriched, make_unreachable
from tests.clocks import ManualClock
from tests.node_plans import apply_plan, change_metadata, compile_one_rule, plan_for


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


CONFIG = ClusterConfig()
OBSERVED = 7  # the sequence of the observation behind the written plan


def version(number: int, **fields: Any) -> Node:
    return make_node(resource_version=str(number), **fields)


def enriched(node: Node, *, facts: MachineFacts | None = None, observed: int = OBSERVED + 1) -> NodeEnriched:
    return make_node_enriched(node, facts or make_facts(), observed_sequence=observed)


@pytest.fixture
def writes(clock: ManualClock) -> OwnWrites:
    """A write that left version 102, planned from an event about version 100."""
    writes = OwnWrites(clock)
    writes.store(version(102))
    writes.record_plan(version(102), enriched(version(100), observed=OBSERVED), CONFIG)
    return writes


# ---- the newest view


@pytest.mark.parametrize(("view", "newest"), [(99, 102), (102, 102), (103, 103), (9, 102)])
def test_the_greater_version_is_the_newer_view(writes: OwnWrites, view: int, newest: int):
    assert writes.latest(version(view)) == version(newest)


def test_a_response_that_arrives_late_does_not_replace_a_newer_one(writes: OwnWrites):
    writes.store(version(98))
    assert writes.latest(version(99)) == version(102)


def test_a_response_is_about_one_node_and_not_about_its_successor(writes: OwnWrites):
    successor = version(50, uid="uid-2")
    assert writes.latest(successor) == successor
    writes.store(successor)
    assert writes.latest(version(49, uid="uid-2")) == successor


def test_a_write_expires_and_takes_no_memory(writes: OwnWrites, clock: ManualClock):
    clock.advance(ENTRY_TTL_SECONDS + 1)
    assert writes.latest(version(99)) == version(99)
    assert not writes.take_echo(enriched(version(102)), version(102), CONFIG)
    writes.store(version(98))  # the server's word now, though it has gone back
    assert writes.latest(version(97)) == version(98)
    clock.advance(ENTRY_TTL_SECONDS + 1)
    writes.store(version(5, name="web-2"))
    assert list(writes._writes) == ["web-2"]


def test_a_restored_etcd_counts_again_once_all_writes_are_forgotten(writes: OwnWrites):
    assert writes.forget_all() == ["web-1"]
    assert writes.latest(version(99)) == version(99)
    assert not writes.take_echo(enriched(version(102)), version(102), CONFIG)
    assert writes.forget_all() == []


# ---- echoes


@pytest.mark.parametrize(("view", "next_is_echo"), [(102, False), (101, True)], ids=["echo", "before"])
def test_the_echo_of_a_write_and_a_state_from_before_it_are_not_planned(
    writes: OwnWrites, view: int, next_is_echo: bool
):
    assert writes.take_echo(enriched(version(view)), version(102), CONFIG)
    assert writes.take_echo(enriched(version(102), observed=9), version(102), CONFIG) is next_is_echo


def test_a_later_write_of_another_plan_has_no_echo(writes: OwnWrites):
    writes.store(version(103))
    assert not writes.take_echo(enriched(version(103)), version(103), CONFIG)


def test_a_machine_that_does_not_answer_after_a_write_is_no_echo_and_ends_it(writes: OwnWrites):
    unreachable = make_unreachable(version(102), observed_sequence=OBSERVED + 1)
    assert not writes.take_echo(unreachable, version(102), CONFIG)
    assert not writes.take_echo(enriched(version(102)), version(102), CONFIG)


@pytest.mark.parametrize(
    ("change", "is_echo"),
    [
        ({"labels": {}}, False),
        ({"taints": ()}, False),
        ({"provider_id": "talos://other"}, False),
        ({"ip": "10.0.0.6"}, False),
        ({"uid": "uid-2"}, False),
        # no service plans from these
        ({"conditions": (NodeCondition(type="Ready", status="True"),)}, True),
        ({"taints": (UNINITIALIZED, Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"))}, True),
        ({"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}, True),
        ({"pod_cidrs": ("10.244.1.0/24",)}, True),
    ],
    ids=str,
)
def test_a_change_after_the_write_is_planned_if_a_service_plans_from_it(
    writes: OwnWrites, change: dict[str, Any], is_echo: bool
):
    changed = version(103, **change)
    assert writes.take_echo(enriched(changed), changed, CONFIG) is is_echo
    assert not writes.take_echo(enriched(version(104), observed=9), version(104), CONFIG), (
        "it no longer counts"
    )


LATER = msgspec.structs.replace(make_facts(), queried_at=ManualClock().now())
BY_UUID = msgspec.structs.replace(enriched(version(102)), verified_by="system-uuid")


@pytest.mark.parametrize(
    ("event", "node", "config", "is_echo"),
    [
        (enriched(version(102)), version(103, labels={}), CONFIG, False),  # not reported yet
        (enriched(version(102), facts=make_facts(region="elsewhere")), version(102), CONFIG, False),
        (enriched(version(102), facts=LATER), version(102), CONFIG, True),
        (BY_UUID, version(102), CONFIG, False),
        (enriched(version(102)), version(102), ClusterConfig(cluster_name="other"), False),
        (enriched(version(100), observed=OBSERVED), version(102), CONFIG, False),  # the periodic message
    ],
)
def test_only_the_state_facts_and_settings_of_the_write_are_an_echo(
    writes: OwnWrites, event: NodeEnriched, node: Node, config: ClusterConfig, is_echo: bool
):
    assert writes.take_echo(event, node, config) is is_echo


# ---- replicas with different rules: the one that loaded its rules earlier waits for the other


METAL = make_facts()
OLD = compile_one_rule(labels="{example.com/team: old}")
NEW = compile_one_rule(labels="{example.com/team: new}")


class Replica:
    def __init__(self, clock: ManualClock, config: ClusterConfig) -> None:
        self.other_rules = ReplicaConflicts(clock)
        self.config = config

    def look(self, node: Node) -> Node | None:
        """Reconcile and return the Node; None while this replica waits."""
        plan = plan_for(node, METAL, self.config)
        if self.other_rules.must_wait(node, plan):
            return None
        after = apply_plan(node, plan)
        self.other_rules.record_applied(after)
        return after


def looked(replica: Replica, node: Node) -> Node:
    after = replica.look(node)
    assert after is not None
    return after


def reconciled_long_ago() -> tuple[ManualClock, Replica, Node]:
    """A replica with the old rules, and the Node that it reconciled before the time of a rollout."""
    clock = ManualClock()
    replica = Replica(clock, OLD)
    node = looked(replica, make_node())
    clock.advance(ROLLOUT_SECONDS + 1)
    return clock, replica, node


def test_the_one_with_older_rules_waits_until_it_has_the_new_ones_or_for_two_minutes():
    clock = ManualClock()
    one, two = Replica(clock, OLD), Replica(clock, OLD)
    node = looked(two, looked(one, make_node()))
    clock.advance(ROLLOUT_SECONDS + 1)
    two.config = NEW
    two.other_rules.on_rules_changed()
    node = looked(two, node)
    assert one.look(node) is None
    assert looked(two, node) == node
    clock.advance(ROLLOUT_SECONDS - 1)
    assert one.look(node) is None
    one.config = NEW
    one.other_rules.on_rules_changed()
    assert looked(one, node) == node


def test_nobody_waits_who_is_alone_or_has_the_same_rules_or_for_a_node_that_joins():
    clock = ManualClock()
    one, two = Replica(clock, OLD), Replica(clock, OLD)
    node = looked(two, looked(one, make_node()))
    clock.advance(ROLLOUT_SECONDS + 1)
    gone = change_metadata(node, labels={"example.com/team": None})
    assert looked(one, gone).labels["example.com/team"] == "old"
    by_new = looked(Replica(clock, NEW), node)
    assert looked(one, change_metadata(by_new, taints=(UNINITIALIZED,))).labels["example.com/team"] == "old"
    assert one.look(make_node(uid="another", labels={"a": "b"})) is not None


def test_a_node_that_is_gone_is_forgotten():
    clock, one, node = reconciled_long_ago()
    one.other_rules.forget(node.name)
    assert one.look(looked(Replica(clock, NEW), node)) is not None


def test_a_record_that_somebody_has_destroyed_is_not_another_replicas():
    _, one, node = reconciled_long_ago()
    for text in (None, "forged", '{"v":1}'):
        broken = change_metadata(node, annotations={FIELD_OWNERSHIP_ANNOTATION: text})
        assert (
            looked(one, broken).annotations[FIELD_OWNERSHIP_ANNOTATION]
            == node.annotations[FIELD_OWNERSHIP_ANNOTATION]
        )


def test_rules_of_the_start_are_no_newer_than_those_that_come_later():
    clock = ManualClock()
    one, two = Replica(clock, OLD), Replica(clock, OLD)
    node = looked(two, looked(one, make_node()))
    two.config = NEW
    two.other_rules.on_rules_changed()
    node = looked(two, node)
    assert one.look(node) is None
    assert looked(two, change_metadata(node, labels={"example.com/team": None})) == node


# ---- what another writer changed between the plan and its write

PLANNED = NodeChanges(
    labels={"zone": "b"}, annotations={"record": "r"}, provider_id="hcloud://7",
    set_taints=(Taint(key="agent", effect="NoSchedule"),),
)  # fmt: skip
BEFORE = version(100, labels={"zone": "a", "kept": "x"}, annotations={"note": "theirs"})
RESULT: dict[str, Any] = {
    "labels": {"zone": "b", "kept": "x"}, "annotations": {"note": "theirs", "record": "r"},
    "provider_id": "hcloud://7", "taints": (*BEFORE.spec.taints, Taint(key="agent", effect="NoSchedule")),
}  # fmt: skip


def test_a_response_with_nothing_but_the_planned_changes_is_the_result_of_the_plan():
    assert is_result_of(PLANNED, BEFORE, version(102, **RESULT))
    not_ready = (*RESULT["taints"], Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"))
    assert is_result_of(PLANNED, BEFORE, version(102, **RESULT | {"taints": not_ready}))


@pytest.mark.parametrize(
    "field",
    [
        {"annotations": {"record": "r"}},
        {"labels": {"zone": "b"}},
        {"labels": {"zone": "b", "kept": "y"}},
        {"taints": (Taint(key="agent", effect="NoSchedule"),)},
        {"addresses": (NodeAddress(type="Hostname", address="other"),)},
    ],
    ids=["annotation removed", "label removed", "label changed", "taint removed", "address changed"],
)
def test_a_response_with_a_change_of_another_writer_is_planned_again(field: dict[str, Any]):
    assert not is_result_of(PLANNED, BEFORE, version(102, **RESULT | field))
