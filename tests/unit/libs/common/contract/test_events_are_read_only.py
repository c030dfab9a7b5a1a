"""The types of all fields of events: readers in one process share an event, so none may be changed."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from libs.common.contract.events import Event
from libs.common.contract.node import Node

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
