"""Keys of rules that cannot be evaluated, or that Kubernetes rejects."""

import pytest

from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION
from services.labeler.core.plan.keys import REGION
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

HCLOUD = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu", zone="two")
WITHOUT_ZONE = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu")
NONE = ClusterConfig()


def test_every_key_of_a_rule_that_fails_stays():
    """Whose a key is that a person changes meanwhile: test_field_ownership."""
    value = "{{ slice .Zone 0 3 }}"
    config = compile_one_rule(
        labels=f"{{example.com/a: '{value}'}}",
        annotations=f"{{example.com/a: '{value}'}}",
        taints=f"{{example.com/a: '{value}:NoExecute'}}",
        platformMetadata=f"{{Region: '{value}'}}",
    )
    node = plan_and_apply(make_node(), HCLOUD, config)
    assert (node.labels["example.com/a"], node.annotations["example.com/a"]) == ("two", "two")
    assert (node.labels[REGION[0]], node.spec.taints[0].value) == ("two", "two")
    assert plan_for(node, WITHOUT_ZONE, config).summary == ()


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
