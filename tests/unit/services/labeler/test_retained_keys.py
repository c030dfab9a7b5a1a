"""Keys of rules that cannot be evaluated, or that Kubernetes rejects."""

import pytest

from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, Node, Taint
from services.labeler.core.plan.keys import ZONE
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.plan.plan_node import plan_node
from services.labeler.core.plan.rejection import (
    NO_REJECTION,
    RejectableKind,
    Rejection,
    build_rejection_notices,
    extend_rejection,
)
from tests.builders import make_facts, make_node
from tests.node_plans import (
    apply_plan,
    change_metadata,
    compile_one_rule,
    decode_record_annotation,
    plan_and_apply,
    plan_for,
)

KEY = "example.com/a"
KINDS = ["labels", "annotations", "taints"]
HCLOUD = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu", zone="two")
WITHOUT_ZONE = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu")
NONE = ClusterConfig()
RULES = {
    "labels": compile_one_rule(labels=f"{{{KEY}: '{{{{ slice .Zone 0 3 }}}}'}}"),
    "annotations": compile_one_rule(annotations=f"{{{KEY}: '{{{{ slice .Zone 0 3 }}}}'}}"),
    "taints": compile_one_rule(taints=f"{{{KEY}: '{{{{ slice .Zone 0 3 }}}}:NoExecute'}}"),
}


def value_of(node: Node, kind: str) -> str | None:
    if kind == "taints":
        return {taint.key: taint.value for taint in node.spec.taints}.get(KEY)
    values: dict[str, str] = getattr(node, kind)
    return values.get(KEY)


def write(node: Node, kind: str, value: str | None) -> Node:
    """The Node after a person has set or removed the key."""
    match kind:
        case "labels":
            return change_metadata(node, labels={KEY: value})
        case "annotations":
            return change_metadata(node, annotations={KEY: value})
        case _:
            taint = Taint(key=KEY, value=value or "", effect="NoExecute")
            return change_metadata(node, taints=() if value is None else (taint,))


def recorded(node: Node, kind: str) -> str | None:
    found: str | None = decode_record_annotation(node)[kind][f"{KEY}:NoExecute" if kind == "taints" else KEY]
    return found


def a_node_whose_rule_fails(kind: str) -> Node:
    node = plan_and_apply(make_node(), HCLOUD, RULES[kind])
    assert plan_for(node, WITHOUT_ZONE, RULES[kind]).summary == ()
    assert (value_of(node, kind), recorded(node, kind)) == ("two", "two")
    return node


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_a_person_changed_and_changed_back_outlives_its_rule(kind: str):
    node = write(a_node_whose_rule_fails(kind), kind, "mine")
    plan = plan_for(node, WITHOUT_ZONE, RULES[kind])
    [message] = [notice.message for notice in plan.notices if notice.reason == "KeptForOthers"]
    assert "to 'mine' instead of 'two' and owns it now" in message
    assert ("remove it from the rule" in message) == (kind == "taints")
    node = plan_and_apply(node, WITHOUT_ZONE, RULES[kind])
    assert (value_of(node, kind), recorded(node, kind)) == ("mine", None)
    again = plan_for(node, HCLOUD, RULES[kind])
    assert "KeptForOthers" not in {notice.reason for notice in again.notices}
    for config in (RULES[kind], NONE):
        node = plan_and_apply(write(node, kind, "two"), HCLOUD, config)
        assert value_of(node, kind) == "two"


@pytest.mark.parametrize(
    ("kind", "afterwards"), [("labels", "two"), ("annotations", "two"), ("taints", None)]
)
def test_a_key_that_a_person_removed_is_set_again_once_its_rule_works_except_a_taint(
    kind: str, afterwards: str | None
):
    node = write(a_node_whose_rule_fails(kind), kind, None)
    node = plan_and_apply(node, WITHOUT_ZONE, RULES[kind])
    assert value_of(plan_and_apply(node, HCLOUD, RULES[kind]), kind) == afterwards


def test_a_zone_that_the_machine_stopped_reporting_and_a_person_set_again_stays():
    node = plan_and_apply(make_node(), HCLOUD, NONE)
    node = plan_and_apply(change_metadata(node, labels={ZONE[0]: None}), WITHOUT_ZONE, NONE)
    assert decode_record_annotation(node)["machine"][ZONE[0]] is None
    assert plan_and_apply(node, HCLOUD, NONE).labels[ZONE[0]] == "two"
    moved = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu", zone="three")
    node = plan_and_apply(change_metadata(node, labels={ZONE[0]: "two"}), moved, NONE)
    assert (node.labels[ZONE[0]], node.labels[ZONE[1]]) == ("two", "three")


def test_a_zone_that_a_person_removed_while_its_rule_failed_stays_once_it_is_set_again():
    config = compile_one_rule(platformMetadata="{Zone: '{{ slice .Region 0 2 }}'}")
    without_region = make_facts(platform="hcloud", provider_id="hcloud://7", zone="two")
    node = plan_and_apply(make_node(), HCLOUD, config)
    assert node.labels[ZONE[0]] == "eu"
    node = plan_and_apply(change_metadata(node, labels={ZONE[0]: None}), without_region, config)
    assert ZONE[0] not in node.labels
    node = plan_and_apply(change_metadata(node, labels={ZONE[0]: "eu"}), without_region, NONE)
    assert (node.labels[ZONE[0]], node.labels[ZONE[1]]) == ("eu", "two")


# ---- rejected keys


ALL: frozenset[RejectableKind] = frozenset({"annotation", "label", "taint"})
EVERYTHING = compile_one_rule(
    annotations="{example.com/a: a}", labels="{example.com/l: l}", taints="{example.com/t: NoSchedule}"
)


def given_up(*refusals: list[str]) -> list[set[str]]:
    """The kinds that are omitted after each rejection, which names these fields."""
    refused: Rejection | None = NO_REJECTION
    found: list[set[str]] = []
    for fields in refusals:
        assert refused is not None
        refused = extend_rejection(refused, fields, "no")
        found.append({*refused.kinds} if refused else {"nothing more"})
    return found


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        (["metadata.annotations"], {"annotation"}),
        (["metadata.annotations[example.com/a]"], {"annotation"}),
        (["metadata.labels", "spec.taints[1].value"], {"label", "taint"}),
        (["metadata.taints[0]"], {"taint"}),
        (["spec.podCIDRs"], {"annotation"}),
        ([], {"annotation"}),
    ],
)
def test_the_fields_of_a_refusal_name_what_goes(fields: list[str], kinds: set[str]):
    assert given_up(fields) == [kinds]


def test_refusals_that_name_nothing_take_annotations_and_labels_before_taints():
    steps: list[set[str]] = [{"annotation"}, {"label"}, {"annotation", "label"}, set(ALL), {"nothing more"}]
    assert given_up(*[[] for _ in steps]) == steps


def test_what_a_refusal_has_named_stays_left_out():
    assert given_up(["metadata.labels"], [], [], []) == [
        {"label"},
        {"annotation", "label"},
        set(ALL),
        {"nothing more"},
    ]
    assert given_up(["metadata.annotations"], ["metadata.labels"]) == [
        {"annotation"},
        {"annotation", "label"},
    ]
    assert given_up(["metadata.annotations"], ["metadata.annotations"])[1] == {"annotation", "label"}


def test_a_joining_node_gets_the_rest():
    plan = plan_node(make_node(), make_facts(), "nodename", EVERYTHING, Rejection(frozenset({"label"}), "no"))
    assert plan.outcome == "initialized"
    assert "annotation example.com/a=a" in plan.summary
    assert "taint example.com/t:NoSchedule set" in plan.summary
    assert not any("example.com/l" in each for each in plan.summary)


def test_a_rejected_key_that_a_person_removed_is_recorded_as_theirs_and_nothing_else_is_written():
    gone = change_metadata(
        plan_and_apply(make_node(), make_facts(), EVERYTHING), labels={"example.com/l": None}
    )
    plan = plan_node(gone, make_facts(), "nodename", EVERYTHING, Rejection(ALL, "no"))
    assert plan.summary == (f"annotation {FIELD_OWNERSHIP_ANNOTATION}: ownership record",)
    gone = apply_plan(gone, plan)
    assert decode_record_annotation(gone)["labels"] == {"example.com/l": None}
    assert plan_node(gone, make_facts(), "nodename", EVERYTHING, Rejection(ALL, "no")).summary == ()
    assert plan_and_apply(gone, make_facts(), EVERYTHING).labels["example.com/l"] == "l"


def test_it_is_told_in_one_line():
    [notice] = build_rejection_notices(Rejection(frozenset({"label", "annotation"}), "no\n" + "x" * 5000))
    assert notice.message.startswith("Kubernetes rejects annotations, labels of rules: no x")
    assert notice.message.isprintable()
    assert len(notice.message) < 1024
    assert build_rejection_notices(NO_REJECTION) == ()
