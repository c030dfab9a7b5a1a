"""The ownership record: read from any annotation, and worthless to a kubelet that forges it."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.contract.node import (
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    Node,
    Taint,
    trim_node,
)
from libs.common.contract.node_patch import build_node_patch
from services.labeler.core.plan.keys import ZONE
from services.labeler.core.plan.ownership_record import (
    ManagedFields,
    encode_managed_fields,
    read_ownership_record,
)
from services.labeler.core.plan.plan import ClusterConfig
from tests.builders import make_facts, make_node
from tests.in_memory_api import PatchFailed, apply_json_patch
from tests.node_plans import (
    apply_plan,
    change_metadata,
    compile_one_rule,
    decode_record_annotation,
    exclude_record_label,
    plan_and_apply,
    plan_for,
    set_ownership_record,
    to_document,
)

MARKS = st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=5), max_size=4)
OWNED = st.builds(
    ManagedFields,
    version=st.just(1), machine=MARKS, labels=MARKS, annotations=MARKS, taints=MARKS,
    provider_id=st.sampled_from(["", "metal://1"]),
)  # fmt: skip


@given(OWNED)
def test_what_is_written_is_read(owned: ManagedFields):
    record = read_ownership_record(set_ownership_record(make_node(), encode_managed_fields(owned)))
    assert (record.state, record.managed_fields, record.problem) == ("read", owned, "")


def test_two_replicas_write_the_same_bytes():
    one = ManagedFields(labels={"a": "1", "b": None}, taints={"t:NoSchedule": ""})
    other = ManagedFields(labels={"b": None, "a": "1"}, taints={"t:NoSchedule": ""})
    assert (
        encode_managed_fields(one)
        == encode_managed_fields(other)
        == '{"labels":{"a":"1","b":null},"taints":{"t:NoSchedule":""},"v":1}'
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "{}", '{"v":0}', '{"v":"1"}', '{"v":1,"labels":[]}', '{"v":1,"labels":{"a":1}}',
     '{"labels":{"a":"1"}}', "[" * 5000, '{"v":1,"labels":' + '{"a":' * 5000, "x" * 200_000, '{"v":-1}'],
)  # fmt: skip
def test_a_record_that_nobody_of_us_has_written_names_nothing(text: str):
    record = read_ownership_record(set_ownership_record(make_node(), text))
    assert (record.state, record.managed_fields, record.is_new) == ("unreadable", ManagedFields(), True)
    assert record.problem


@pytest.mark.parametrize("text", ['{"v":2}', '{"v":2,"labels":["of another shape"]}', '{"v":99,"labels":{}}'])
def test_a_record_of_a_newer_version_is_known_as_such(text: str):
    record = read_ownership_record(set_ownership_record(make_node(), text))
    assert (record.state, record.managed_fields, record.is_new) == ("newer", ManagedFields(), False)
    assert "newer" in record.problem


def test_fields_that_a_later_version_adds_are_no_reason_to_lose_the_rest():
    record = read_ownership_record(set_ownership_record(make_node(), '{"v":1,"labels":{"a":"1"},"later":{}}'))
    assert (record.state, record.managed_fields.labels) == ("read", {"a": "1"})


def test_the_record_travels_however_long_it_is():
    long = encode_managed_fields(ManagedFields(labels={f"example.com/key-{n}": "v" for n in range(200)}))
    node = trim_node(set_ownership_record(make_node(annotations={"theirs": "x" * 2000}), long))
    assert len(long) > 4000
    assert set(node.annotations) == {FIELD_OWNERSHIP_ANNOTATION, "alpha.kubernetes.io/provided-node-ip"}
    assert read_ownership_record(node).managed_fields.labels == msgspec.json.decode(long)["labels"]


# ---- forged records


METAL = make_facts()
NONE = ClusterConfig()
TEAM = compile_one_rule(labels="{example.com/team: web}", taints="{example.com/agent: 'waiting:NoSchedule'}")
ISOLATED = Taint(key="example.com/compromised", value="yes", effect="NoExecute")
TRUSTED = "node-restriction.kubernetes.io/tenant"
FORGED = encode_managed_fields(
    ManagedFields(
        labels={TRUSTED: "audit", "example.com/team": "web"},
        annotations={"example.com/audit": "on"},
        taints={"example.com/compromised:NoExecute": "yes"},
        provider_id="aws:///i-1",
    )
)


def of_an_admin(node: Node) -> Node:
    """A Node that an administrator has isolated."""
    node = change_metadata(node, labels={TRUSTED: "audit"}, annotations={"example.com/audit": "on"})
    return change_metadata(node, taints=(*node.spec.taints, ISOLATED))


def is_still_apart(node: Node) -> bool:
    return (
        node.labels[TRUSTED] == "audit"
        and node.annotations["example.com/audit"] == "on"
        and ISOLATED in node.spec.taints
    )


def by_kubelet(node: Node, record: str | None) -> Node:
    return change_metadata(node, annotations={FIELD_OWNERSHIP_ANNOTATION: record})


def test_a_kubelet_that_registers_with_a_record_joins_as_any_other():
    node = plan_and_apply(make_node(annotations={FIELD_OWNERSHIP_ANNOTATION: FORGED}), METAL, TEAM)
    assert node == plan_and_apply(make_node(), METAL, TEAM)


def test_an_old_record_that_a_kubelet_puts_back_does_not_count():
    node = plan_and_apply(make_node(), METAL, TEAM)
    old = node.annotations[FIELD_OWNERSHIP_ANNOTATION]
    without = plan_and_apply(node, METAL, NONE)
    team = change_metadata(without, labels={"example.com/team": "web"})  # a person's, from now on
    team = change_metadata(
        team, taints=(Taint(key="example.com/agent", value="waiting", effect="NoSchedule"),)
    )
    node = plan_and_apply(by_kubelet(team, old), METAL, NONE)
    assert node.labels["example.com/team"] == "web"
    assert len(node.spec.taints) == 1


def test_a_patch_on_an_old_view_fails_even_where_a_kubelet_has_put_the_old_record_back():
    old = change_metadata(plan_and_apply(make_node(), METAL, TEAM), labels={"example.com/team": None})
    put_back = build_node_patch(old, plan_for(old, METAL, TEAM).changes)
    meanwhile = by_kubelet(plan_and_apply(old, METAL, NONE), old.annotations[FIELD_OWNERSHIP_ANNOTATION])
    with pytest.raises(PatchFailed):
        apply_json_patch(to_document(meanwhile), put_back)


@pytest.mark.parametrize("record", [None, "", "{}", FORGED], ids=["none", "empty", "no version", "forged"])
def test_what_was_ours_for_certain_is_ours_again_whatever_became_of_the_record(record: str | None):
    node = plan_and_apply(make_node(), METAL, TEAM)
    plan = plan_for(by_kubelet(node, record), METAL, TEAM)
    assert [notice.reason for notice in plan.notices] == ["OwnedRecordUnreadable"]
    assert apply_plan(by_kubelet(node, record), plan) == node
    assert exclude_record_label(plan_and_apply(node, METAL, NONE).labels) == exclude_record_label(
        plan_and_apply(make_node(), METAL, NONE).labels
    )


def test_a_destroyed_record_does_not_hand_over_what_a_person_has_set_to_the_same():
    node = plan_and_apply(make_node(labels={"example.com/team": "web"}), METAL, TEAM)
    assert "example.com/team" not in decode_record_annotation(node).get("labels", {})
    node = plan_and_apply(by_kubelet(node, None), METAL, TEAM)
    assert plan_and_apply(node, METAL, NONE).labels["example.com/team"] == "web"


def test_a_destroyed_record_takes_no_zone_back_from_a_person_and_brings_no_taint_back():
    facts = make_facts(zone="rack-1")
    node = change_metadata(plan_and_apply(make_node(), facts, TEAM), labels={ZONE[0]: "mine"}, taints=())
    node = plan_and_apply(node, facts, TEAM)
    node = plan_and_apply(by_kubelet(node, None), facts, TEAM)
    assert (node.labels[ZONE[0]], node.spec.taints) == ("mine", ())
    assert plan_for(node, facts, TEAM).summary == ()


@pytest.mark.parametrize("record", [None, FORGED])
def test_a_kubelet_cannot_make_its_node_another_controllers(record: str | None):
    config = compile_one_rule(platformMetadata="{ProviderID: 'proxmox://c/1'}")
    node = by_kubelet(plan_and_apply(make_node(), METAL, config), record)
    for _ in range(3):
        node = plan_and_apply(node, METAL, TEAM)
        assert node.labels["example.com/team"] == "web"
    assert plan_for(node, METAL, TEAM).outcome == "unchanged"


def test_a_kubelet_cannot_make_another_controllers_node_ours():
    foreign = make_node(taints=(), provider_id="aws:///i-1")
    assert plan_for(by_kubelet(foreign, FORGED), METAL, TEAM).outcome == "not-ours"


def test_whoever_may_write_labels_begins_anew_by_removing_the_label():
    node = change_metadata(
        plan_and_apply(make_node(), METAL, TEAM), labels={FIELD_OWNERSHIP_DIGEST_LABEL: None}
    )
    node = plan_and_apply(node, METAL, TEAM)
    assert read_ownership_record(node).state == "read"
    assert "example.com/team" not in plan_and_apply(node, METAL, NONE).labels


RULES = (NONE, TEAM, compile_one_rule(labels="{example.com/team: db}"))


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_whatever_a_kubelet_writes_there_an_admins_keys_stay_and_it_settles(chance: random.Random):
    of_the_reference = make_node(taints=(), provider_id="talos://metal/10.0.0.5")
    ours = plan_and_apply(make_node(), METAL, chance.choice(RULES))
    node = of_an_admin(chance.choice((ours, of_the_reference)))
    records: list[str | None] = [None, "", FORGED, '{"v":2}']
    for _ in range(6):
        records.append(node.annotations.get(FIELD_OWNERSHIP_ANNOTATION))
        node = by_kubelet(node, chance.choice(records))
        rules = chance.choice(RULES)
        node = plan_and_apply(node, METAL, rules)
        assert is_still_apart(node)
        assert read_ownership_record(node).state == "read"
        assert plan_for(node, METAL, rules).summary == ()
