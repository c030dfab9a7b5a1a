"""The smallest fenced patch: reaches what is wanted, fails on a changed key, touches nothing else."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeAddress, NodeCondition, Taint
from libs.common.contract.node_patch import NodeChanges, build_node_patch, build_status_patch
from tests.builders import NOW, UNINITIALIZED, make_node
from tests.patches import PatchFailed, apply_json_patch

KEYS = st.sampled_from(["a", "b", "example.com/c", "tilde~d", "e~1/f"])
VALUES = st.text("xyz", max_size=3)
LABELS = st.dictionaries(KEYS, VALUES, max_size=5)
TAINTS = st.lists(
    st.builds(
        Taint,
        key=st.sampled_from("kl"),
        value=VALUES,
        effect=st.sampled_from(["NoSchedule", "NoExecute"]),
        time_added=st.sampled_from(["", "2026-01-01T00:00:00Z"]),
    ),
    max_size=4,
    unique_by=lambda taint: (taint.key, taint.effect),
).map(tuple)


def document(node: Node) -> dict:
    return msgspec.json.decode(msgspec.json.encode(node), type=dict)


def read(plain: dict) -> Node:
    return msgspec.convert(plain, Node)


@given(LABELS, st.dictionaries(KEYS, st.none() | VALUES, max_size=5))
def test_labels_end_as_wanted_and_others_stay_byte_identical(current, wanted):
    node = make_node(labels=current)
    after = read(apply_json_patch(document(node), build_node_patch(node, NodeChanges(labels=wanted)))).labels
    assert after == {k: v for k, v in (current | wanted).items() if v is not None}


@given(LABELS, st.dictionaries(KEYS, st.none() | VALUES, max_size=5), TAINTS, TAINTS, TAINTS)
def test_a_patch_that_was_carried_out_has_nothing_left_to_do(current, labels, taints, wanted, unwanted):
    doomed = {(t.key, t.effect) for t in unwanted}
    changes = NodeChanges(
        labels=labels,
        provider_id="talos://metal/10.0.0.5",
        pod_cidrs=("10.244.0.0/24",),
        set_taints=tuple(t for t in wanted if (t.key, t.effect) not in doomed),
        remove_taints=unwanted,
    )
    node = make_node(labels=current, taints=taints)
    after = read(apply_json_patch(document(node), build_node_patch(node, changes)))
    assert build_node_patch(after, changes) == []
    assert {(t.key, t.effect) for t in after.spec.taints}.isdisjoint(doomed)
    assert after.spec.pod_cidr == "10.244.0.0/24"


@given(TAINTS, TAINTS)
def test_taints_that_are_not_named_keep_value_place_and_time(taints, unwanted):
    node = make_node(taints=taints)
    after = read(
        apply_json_patch(document(node), build_node_patch(node, NodeChanges(remove_taints=unwanted)))
    )
    doomed = {(t.key, t.effect) for t in unwanted}
    assert after.spec.taints == tuple(t for t in taints if (t.key, t.effect) not in doomed)


@pytest.mark.parametrize(
    ("planned_on", "changes", "meanwhile"),
    [
        (make_node(labels={"a": "1"}), NodeChanges(labels={"a": "2"}), make_node(labels={"a": "theirs"})),
        (
            make_node(labels={"a": "1"}),
            NodeChanges(labels={"b": "2"}),
            make_node(labels={"a": "1", "b": "theirs"}),
        ),
        (make_node(labels={}), NodeChanges(labels={"a": "2"}), make_node(labels={"b": "theirs"})),
        (make_node(), NodeChanges(provider_id="talos://metal/1"), make_node(provider_id="hcloud://1")),
        (make_node(), NodeChanges(pod_cidrs=("10.0.0.0/24",)), make_node(pod_cidrs=("10.1.0.0/24",))),
        (make_node(), NodeChanges(remove_taints=(UNINITIALIZED,)), make_node(taints=())),
        (
            make_node(),
            NodeChanges(remove_taints=(UNINITIALIZED,)),
            make_node(taints=(Taint(key="x", effect="NoSchedule"), UNINITIALIZED)),
        ),
        (make_node(), NodeChanges(labels={"a": "1"}), make_node(uid="another")),
    ],
    ids=[
        "label-changed",
        "label-appeared",
        "map-appeared",
        "provider-id",
        "pod-cidrs",
        "taint-gone",
        "taint-moved",
        "another-node",
    ],
)
def test_a_patch_planned_on_an_old_view_fails_as_a_whole(planned_on, changes, meanwhile):
    with pytest.raises(PatchFailed):
        apply_json_patch(document(meanwhile), build_node_patch(planned_on, changes))


def test_immutable_fields_are_never_written_over():
    node = make_node(provider_id="hcloud://1", pod_cidrs=("10.1.0.0/24",))
    assert build_node_patch(node, NodeChanges(provider_id="talos://x", pod_cidrs=("10.2.0.0/24",))) == []


def test_a_status_that_is_as_wanted_gives_no_patch():
    addresses = (NodeAddress(type="InternalIP", address="10.0.0.5"),)
    condition = NodeCondition(
        type=BLOCKED_CONDITION, status="True", reason="TalosRefused", message="old text"
    )
    node = make_node(addresses=addresses, conditions=(condition,))
    assert build_status_patch(node, addresses=addresses, set_condition=condition, now=NOW) == {}
    other_text = msgspec.structs.replace(condition, message="another text, same reason")
    patch = build_status_patch(node, addresses=addresses, set_condition=other_text, now=NOW)
    assert [each["message"] for each in patch["status"]["conditions"]] == [other_text.message]
    assert build_status_patch(make_node(), remove_condition=BLOCKED_CONDITION, now=NOW) == {}


def test_a_status_patch_is_fenced_by_the_uid_and_replaces_addresses_as_a_whole():
    node = make_node(
        conditions=(NodeCondition(type=BLOCKED_CONDITION, status="True", reason="TalosRefused"),)
    )
    addresses = (
        NodeAddress(type="InternalIP", address="10.0.0.5"),
        NodeAddress(type="InternalIP", address="fd00::5"),
    )
    assert build_status_patch(node, addresses=addresses, remove_condition=BLOCKED_CONDITION, now=NOW) == {
        "metadata": {"uid": "uid-1"},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "10.0.0.5"},
                {"type": "InternalIP", "address": "fd00::5"},
                {"$patch": "replace"},
            ],
            "conditions": [{"type": BLOCKED_CONDITION, "$patch": "delete"}],
        },
    }
