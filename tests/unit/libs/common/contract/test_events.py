"""Events are immutable, limited in bytes, and have comparable times."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from libs.common.contract.events import MAX_EVENT_BYTES, Event, EventError, decode, encode
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import Node
from tests.builders import (
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


def test_the_walk_finds_the_types_within_a_field():
    assert {Node, str, int} <= {*_walk(dict[str, tuple[Node, int] | None])}
