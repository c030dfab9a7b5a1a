"""Events: what they contain, reports about instances, and which of two messages is newer."""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.events import MAX_EVENT_BYTES, Event, EventError, decode, encode
from libs.common.contract.instances import RECORD_ANNOTATION, RECORD_DIGEST_LABEL, read_instance_record
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import Node, trim_node
from libs.common.contract.ordering import Recency, compare_events
from libs.common.contract.protected_annotation import compute_digest
from libs.common.contract.subjects import subject_of
from tests.builders import (
    NOW,
    STREAM_ID,
    make_cluster_networks,
    make_csr_enriched,
    make_csr_observed,
    make_facts,
    make_leading,
    make_node,
    make_node_enriched,
    make_node_observed,
    make_request,
    make_unreachable,
)
from tests.instance_reports import make_record, make_recorded_node, make_unknown


def largest_that_can_be_observed() -> int:
    """Characters of an annotation."""
    fits, does_not = 0, MAX_EVENT_BYTES
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        try:
            encode(make_node_observed(make_node(annotations={"a": "x" * middle})))
            fits = middle
        except EventError:
            does_not = middle
    return fits


def test_a_node_that_can_be_observed_can_be_said_to_be_unreachable_however_large_it_is():
    node = make_node(annotations={"a": "x" * largest_that_can_be_observed()})
    fault = MachineFault(kind="invalid", step="facts", message="m" * 1000)
    assert len(encode(make_unreachable(node, fault=fault))) <= MAX_EVENT_BYTES
    with pytest.raises(EventError):
        encode(make_node_observed(make_node(annotations={"a": "x" * MAX_EVENT_BYTES})))


EVENTS = [
    make_node_observed(make_node()),
    make_node_enriched(make_node(), make_facts()),
    make_csr_observed(make_request()),
    make_csr_enriched(make_request()),
]


def times_of(document: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(document, dict):
        return []
    found = []
    for key, value in document.items():
        if isinstance(value, str) and key.endswith("_at"):
            found.append((*path, key))
        found += times_of(value, (*path, key))
    return found


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_message_with_a_time_that_cannot_be_compared_is_no_message(event: Event):
    document = msgspec.json.decode(encode(event))
    paths = times_of(document)
    assert paths
    for *path, key in paths:
        broken = msgspec.json.decode(encode(event))
        place = broken
        for name in path:
            place = place[name]
        place[key] = "0001-01-01T00:00:00"
        with pytest.raises(EventError):
            decode(msgspec.json.encode(broken))
    assert decode(encode(event)) == event
    assert decode(encode(make_leading())) == make_leading()


_MUTABLE = (bytearray, dict, list, set)


def _walk(kind: Any) -> Iterator[Any]:
    """That type, and all types in it."""
    yield get_origin(kind) or kind
    for part in get_args(kind):
        yield from _walk(part)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in get_type_hints(kind).values():
            yield from _walk(field)


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_an_event_contains_frozen_structs_and_no_mutable_collection(kind: type):
    types = {each for each in _walk(kind) if isinstance(each, type)}
    assert not types & {*_MUTABLE}
    assert all(each.__struct_config__.frozen for each in types if issubclass(each, msgspec.Struct))


# ---- reports about instances


NODE = make_recorded_node()


def with_record(text: str) -> Node:
    labels = {RECORD_DIGEST_LABEL: compute_digest(text)}
    return make_node(uid=NODE.uid, annotations={RECORD_ANNOTATION: text}, labels=labels)


def test_the_record_of_a_node_survives_what_the_watcher_cuts():
    assert read_instance_record(trim_node(NODE)) == make_record(NODE)


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(make_node(), id="absent"),
        pytest.param(make_recorded_node(digest="0" * 56), id="forged"),
        pytest.param(make_recorded_node(record={"node_uid": "uid-2"}), id="another uid"),
        pytest.param(make_recorded_node(record={"provider_id": "hcloud://8"}), id="another providerID"),
        pytest.param(with_record("{}"), id="incomplete"),
        pytest.param(with_record("[" * 900), id="not JSON"),
    ],
)
def test_a_record_that_does_not_belong_to_the_node_is_none(node: Node):
    assert read_instance_record(node) is None


def test_a_report_replaces_only_one_of_an_earlier_round():
    earlier, later = (make_unknown(NODE, at=NOW + timedelta(microseconds=n)) for n in (1, 2))
    assert subject_of(later) == "talosccm.v1.cloud.prod.instance.web-1"
    assert compare_events(later, earlier, STREAM_ID) is Recency.NEWER
    assert compare_events(earlier, later, STREAM_ID) is Recency.OLDER
    assert compare_events(earlier, earlier, STREAM_ID) is Recency.SAME


# ---- order


OTHER = "2020-01-01T00:00:00Z"


def an_observation(stream_id: str, epoch: int, version: int):
    return make_node_observed(make_node(resource_version=str(version)), stream_id=stream_id, epoch=epoch)


ORDERED_EVENTS = st.builds(
    an_observation, st.sampled_from([STREAM_ID, OTHER]), st.integers(1, 3), st.integers(1, 3)
)


@given(ORDERED_EVENTS, ORDERED_EVENTS)
def test_of_two_messages_at_most_one_is_newer(one, other):
    outcomes = {compare_events(one, other, STREAM_ID), compare_events(other, one, STREAM_ID)}
    assert outcomes in ({Recency.NEWER, Recency.OLDER}, {Recency.SAME}, {Recency.OLDER})


@given(st.lists(ORDERED_EVENTS, min_size=1, max_size=4))
def test_the_stream_ends_with_the_same_message_whatever_the_order_of_arrival(messages):
    def last_after(arrivals):
        held = None
        for message in arrivals:
            if compare_events(message, held, STREAM_ID) is Recency.NEWER:
                held = message
        return held and (held.order.epoch, held.order.resource_version)

    assert len({last_after(order) for order in itertools.permutations(messages)}) == 1


def test_a_message_of_another_stream_id_loses_whatever_its_order():
    foreign, present = an_observation(OTHER, 9, 9), an_observation(STREAM_ID, 1, 1)
    assert compare_events(present, foreign, STREAM_ID) is Recency.NEWER
    assert compare_events(foreign, present, STREAM_ID) is Recency.OLDER
    assert compare_events(foreign, None, STREAM_ID) is Recency.OLDER


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        [make_node_enriched(make_node(), make_facts(), observed_sequence=n) for n in (3, 4)],
        [make_cluster_networks(observed_at=NOW + timedelta(microseconds=n)) for n in (0, 1)],
    ],
    ids=["enrichments, by their observation", "networks, by the time of the query"],
)
def test_events_without_an_order_of_their_own_are_ordered_by_what_they_answer(older: Event, newer: Event):
    assert compare_events(newer, older, STREAM_ID) is Recency.NEWER
    assert compare_events(older, newer, STREAM_ID) is Recency.OLDER
    assert compare_events(older, older, STREAM_ID) is Recency.SAME


def test_a_former_leader_loses_to_its_successor():
    assert compare_events(make_leading(epoch=1), make_leading(epoch=2), STREAM_ID) is Recency.OLDER
