"""Keys that another writer keeps and taints that are withheld: recorded, told, and how they come back."""

import pytest

from libs.common.contract.node import APPLY_TAINTS_ANNOTATION, Node, Taint
from services.labeler.core.plan.kept_keys import KeptKey, find_kept_keys
from services.labeler.core.plan.keys import ZONE
from services.labeler.core.plan.plan import ClusterConfig, Plan
from tests.builders import make_facts, make_node
from tests.node_plans import (
    apply_plan,
    change_metadata,
    compile_one_rule,
    plan_and_apply,
    plan_for,
)

FACTS = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu-central", zone="fsn1-dc14")
NONE = ClusterConfig()
TEAM = compile_one_rule(labels="{example.com/team: web}")
NOTE = compile_one_rule(annotations=f"{{example.com/note: {'n' * 100}}}")
TAINT = compile_one_rule(taints="{example.com/agent: 'waiting:NoExecute'}")
AGENT, WAITING = (
    "example.com/agent:NoExecute",
    Taint(key="example.com/agent", value="waiting", effect="NoExecute"),
)
OPT_IN: dict[str, str | None] = {APPLY_TAINTS_ANNOTATION: "true"}
FOO = KeptKey(kind="label", key=ZONE[0], current="foo", desired="fsn1-dc14")
WITHHELD = KeptKey(kind="taint", key=AGENT, current=None, desired="waiting")


def in_use() -> Node:
    """A Node that the reference controller has initialized."""
    node = make_node(taints=(), provider_id="hcloud://7")
    return apply_plan(
        node, Plan(outcome="updated", reason="", addresses=plan_for(node, FACTS, NONE).addresses)
    )


def ours(config: ClusterConfig = NONE) -> Node:
    return plan_and_apply(make_node(), FACTS, config)


def kept(node: Node, plan: Plan | None = None) -> tuple[KeptKey, ...]:
    return find_kept_keys(node, plan.changes) if plan else find_kept_keys(node)


def told(plan: Plan) -> dict[str, str]:
    return {notice.reason: notice.message for notice in plan.notices}


def test_an_overwritten_zone_is_kept_before_and_after_the_labeler_has_recorded_it():
    node = change_metadata(ours(), labels={ZONE[0]: "foo"})
    plan = plan_for(node, FACTS, NONE)
    assert kept(node) == kept(node, plan) == (FOO,)
    assert f"; not set: label {ZONE[0]}" in plan.reason
    node = apply_plan(node, plan)
    plan = plan_for(node, FACTS, NONE)
    assert (plan.outcome, plan.summary) == ("unchanged", ())
    assert kept(node) == kept(node, plan) == (FOO,)
    assert plan.reason == f"everything is set but label {ZONE[0]}"


def test_of_a_long_value_that_should_be_set_the_fingerprint_is_told():
    node = change_metadata(ours(NOTE), annotations={"example.com/note": "x"})
    [found] = kept(plan_and_apply(node, FACTS, NOTE))
    assert (found.kind, found.key, found.current) == ("annotation", "example.com/note", "x")
    assert found.desired.startswith("sha256:")


def test_the_value_that_the_rule_gives_now_is_told():
    node = plan_and_apply(change_metadata(ours(TEAM), labels={"example.com/team": "db"}), FACTS, TEAM)
    node = plan_and_apply(node, FACTS, compile_one_rule(labels="{example.com/team: mail}"))
    assert [each.desired for each in kept(node)] == ["mail"]


@pytest.mark.parametrize("value", [None, "fsn1-dc14"], ids=["removed", "set to the machine's zone"])
def test_a_key_that_does_not_differ_is_not_told(value: str | None):
    node = plan_and_apply(change_metadata(ours(), labels={ZONE[0]: "foo"}), FACTS, NONE)
    node = change_metadata(node, labels={ZONE[0]: value})
    assert kept(node) == ()
    assert kept(plan_and_apply(node, FACTS, NONE)) == ()


def test_what_others_may_have_is_not_told():
    """A taint that its agent removed, one that the kubelet registered too, and keys without a rule."""
    assert kept(plan_and_apply(change_metadata(ours(TAINT), taints=()), FACTS, TAINT)) == ()
    joining = make_node(taints=(*make_node().spec.taints, WAITING), labels={"example.com/other": "x"})
    assert kept(plan_and_apply(joining, FACTS, TAINT)) == ()


# ---- withheld taints


def test_a_taint_is_withheld_from_a_node_in_use_and_told_with_the_way_out():
    plan = plan_for(in_use(), FACTS, TAINT)
    assert not plan.changes.set_taints
    assert told(plan)["TaintWithheld"] == (
        f"taint {AGENT} of a rule is not set, because the Node was in use before; "
        f"to set it once: kubectl annotate node web-1 {APPLY_TAINTS_ANNOTATION}=true"
    )
    node = apply_plan(in_use(), plan)
    plan = plan_for(node, FACTS, TAINT)
    assert kept(node) == kept(node, plan) == (WITHHELD,)
    assert (plan.summary, "TaintWithheld" in told(plan)) == ((), False)
    assert plan.reason == f"everything is set but taint {AGENT}"


@pytest.mark.parametrize("is_recorded", [True, False], ids=["managed", "before the first plan"])
def test_the_annotation_has_the_taint_set_once(is_recorded: bool):
    node = plan_and_apply(in_use(), FACTS, TAINT) if is_recorded else in_use()
    plan = plan_for(change_metadata(node, annotations=OPT_IN), FACTS, TAINT)
    assert "TaintWithheld" not in told(plan)
    node = apply_plan(change_metadata(node, annotations=OPT_IN), plan)
    assert node.spec.taints == (WAITING,)
    assert APPLY_TAINTS_ANNOTATION not in node.annotations
    assert kept(node) == ()
    assert plan_for(node, FACTS, TAINT).summary == ()
    assert plan_and_apply(node, FACTS, NONE).spec.taints == ()  # it is the rule's from then on
    removed = plan_and_apply(change_metadata(node, taints=()), FACTS, TAINT)
    again = plan_and_apply(change_metadata(removed, annotations=OPT_IN), FACTS, TAINT)
    assert (removed.spec.taints, again.spec.taints, kept(again)) == ((), (), ())


def test_a_startup_taint_that_its_agent_removed_never_returns():
    node = plan_and_apply(change_metadata(ours(TAINT), taints=()), FACTS, TAINT)
    after = plan_and_apply(change_metadata(node, annotations=OPT_IN), FACTS, TAINT)
    assert (after.spec.taints, APPLY_TAINTS_ANNOTATION in after.annotations) == ((), False)
    assert plan_and_apply(after, FACTS, TAINT) == after


@pytest.mark.parametrize("value", ["false", "", "yes"])
def test_another_value_of_the_annotation_sets_nothing(value: str):
    node = change_metadata(
        plan_and_apply(in_use(), FACTS, TAINT), annotations={APPLY_TAINTS_ANNOTATION: value}
    )
    assert plan_for(node, FACTS, TAINT).summary == ()


def test_the_request_is_met_when_the_rule_can_be_evaluated_again():
    fails = compile_one_rule(taints="{example.com/agent: '{{ slice .InstanceID 0 4 }}:NoExecute'}")
    node = plan_and_apply(in_use(), FACTS, TAINT)
    node = plan_and_apply(change_metadata(node, annotations=OPT_IN), FACTS, fails)
    assert (node.annotations[APPLY_TAINTS_ANNOTATION], kept(node)) == ("true", (WITHHELD,))
    assert plan_and_apply(node, FACTS, TAINT).spec.taints == (WAITING,)


@pytest.mark.parametrize(
    "node", [in_use(), change_metadata(ours(TAINT), taints=())], ids=["withheld", "removed"]
)
def test_a_damaged_record_is_restored_with_what_is_withheld(node: Node):
    node = plan_and_apply(node, FACTS, TAINT)
    damaged = change_metadata(node, annotations={"node.cloudprovider.kubernetes.io/talos-ccm-owned": "{}"})
    assert plan_and_apply(damaged, FACTS, TAINT) == node
