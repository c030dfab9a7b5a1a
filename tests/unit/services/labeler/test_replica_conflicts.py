"""Replicas with different rules: the one that loaded its rules earlier waits for the other."""

from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, Node
from services.labeler.core.plan import ClusterConfig
from services.labeler.core.replica_conflicts import ROLLOUT_SECONDS, ReplicaConflicts
from tests.builders import UNINITIALIZED, make_facts, make_node
from tests.manual_clock import ManualClock
from tests.node_plans import apply_plan, change_metadata, compile_one_rule, plan_for

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
        if self.other_rules.why_wait(node, plan):
            return None
        self.other_rules.record_plan(node, plan)
        self.other_rules.record_applied(node.name)
        return apply_plan(node, plan)


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


def test_it_does_not_wait_for_ever():
    clock, one, node = reconciled_long_ago()
    node = looked(Replica(clock, NEW), node)
    assert one.look(node) is None
    clock.advance(ROLLOUT_SECONDS + 1)
    assert looked(one, node).labels["example.com/team"] == "old"


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


def test_a_kubelet_that_writes_into_the_record_is_no_replica():
    _, one, node = reconciled_long_ago()
    forged = change_metadata(node, annotations={FIELD_OWNERSHIP_ANNOTATION: '{"v":1}'})
    assert looked(one, forged) == node


def test_a_record_that_somebody_has_destroyed_is_not_another_replicas():
    _, one, node = reconciled_long_ago()
    for text in (None, "forged"):
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
