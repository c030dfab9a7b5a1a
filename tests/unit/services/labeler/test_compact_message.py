"""The labeler stores equal parts of a Node once, and nothing that it reads changes."""

import msgspec
import pytest

from libs.common.contract.events import NodeEnriched, NodeObserved
from libs.common.contract.node import Node, NodeAddress, NodeCondition, share_equal_parts
from libs.common.contract.subjects import subject_of
from services.labeler.core.compact_message import compact_message
from tests.builders import (
    make_facts,
    make_message,
    make_node,
    make_node_enriched,
    make_node_gone,
    make_node_observed,
)

ADDRESSES = (NodeAddress(type="InternalIP", address="10.0.0.5"),)
READY = (NodeCondition(type="Ready", status="True"),)


def a_node(**fields: object) -> Node:
    """A Node that no other one shares a part with, as after decoding."""
    made = make_node(labels={"a": "b"}, annotations={"c": "d"}, addresses=ADDRESSES, conditions=READY)
    return msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(made, **fields)), type=Node)


def parts(node: Node) -> dict[str, object]:
    return {
        "labels": node.labels,
        "annotations": node.annotations,
        "spec": node.spec,
        "addresses": node.status.addresses,
        "conditions": node.status.conditions,
    }


def newer(node: Node, **metadata: object) -> Node:
    changed = msgspec.structs.replace(node.metadata, resource_version="101", **metadata)
    return msgspec.structs.replace(node, metadata=changed)


def test_a_newer_node_shares_all_parts_but_the_changed_one():
    stored, arrived = a_node(), newer(a_node(), labels={"a": "changed"})
    shared = share_equal_parts(arrived, stored)
    assert shared == arrived
    same = {name for name, part in parts(shared).items() if part is parts(stored)[name]}
    assert same == parts(stored).keys() - {"labels"}


OBSERVED = make_node_observed(newer(a_node())), make_node_observed(a_node())
REPORTED = make_node_enriched(newer(a_node()), make_facts()), make_node_enriched(a_node(), make_facts())


@pytest.mark.parametrize(("arrived", "stored"), [(OBSERVED[0], REPORTED[1]), (REPORTED[0], OBSERVED[1])])
def test_observation_and_report_share_equal_parts_and_each_keeps_its_own_values(
    arrived: NodeObserved | NodeEnriched, stored: NodeObserved | NodeEnriched
):
    message = compact_message(make_message(arrived, sequence=7), {subject_of(stored): stored}.get)
    assert message == make_message(arrived, sequence=7)
    assert isinstance(message.event, NodeObserved | NodeEnriched)
    assert message.event.node.labels is stored.node.labels
    assert arrived.node.labels is not stored.node.labels


@pytest.mark.parametrize(("arrived", "stored"), [OBSERVED, REPORTED])
def test_the_message_that_the_new_one_replaces_lends_nothing(
    arrived: NodeObserved | NodeEnriched, stored: NodeObserved | NodeEnriched
):
    message = make_message(arrived)
    assert compact_message(message, {subject_of(stored): stored}.get) is message


def test_a_deletion_and_a_node_that_is_stored_nowhere_else_are_stored_as_they_are():
    for event in (make_node_gone(a_node()), make_node_observed(a_node())):
        message = make_message(event)
        assert compact_message(message, lambda subject: None) is message
