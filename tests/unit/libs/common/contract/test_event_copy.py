"""A copy of an event, for every kind of event with every optional field set."""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from libs.common.contract.events import Event, decode
from libs.common.contract.events.event_copy import copy_event

_SCALARS: dict[type, Any] = {
    inspect.DateTimeType: "2026-01-02T03:04:05Z",
    inspect.BytesType: "LS0t",
    inspect.BoolType: True,
    inspect.IntType: 7,
    inspect.StrType: "text",
}


def _sample(kind: inspect.Type) -> Any:
    """A value of that type as in JSON; an optional one is set, and no collection is empty."""
    match kind:
        case inspect.StructType():
            tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
            return tag | {field.encode_name: _sample(field.type) for field in kind.fields}
        case inspect.UnionType():
            return _sample(next(each for each in kind.types if not isinstance(each, inspect.NoneType)))
        case inspect.DictType():
            return {"key": _sample(kind.value_type)}
        case inspect.VarTupleType():
            return [_sample(kind.item_type)]
        case inspect.Metadata():
            return _sample(kind.type)
        case inspect.LiteralType():
            return kind.values[0]
        case _:
            return _SCALARS[type(kind)]


def _dictionaries(value: Any) -> Iterator[dict[str, str]]:
    if isinstance(value, dict):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _dictionaries(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _dictionaries(getattr(value, name))


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_a_copy_is_equal_and_shares_no_dictionary(kind: type):
    event = decode(msgspec.json.encode(_sample(inspect.type_info(kind))))
    copy = copy_event(event)
    assert copy == event
    present = {id(each) for each in _dictionaries(event)}
    assert len([*_dictionaries(copy)]) == len(present)
    assert not present & {id(each) for each in _dictionaries(copy)}


def test_the_samples_contain_dictionaries():
    samples = [decode(msgspec.json.encode(_sample(inspect.type_info(kind)))) for kind in get_args(Event)]
    assert sum(len([*_dictionaries(sample)]) for sample in samples) == 2 + 4 + 4 + 2 + 4
