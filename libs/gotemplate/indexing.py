"""Implements len, index and slice: strings by bytes, lists by position, maps by key."""

from collections.abc import Sequence
from itertools import pairwise

from libs.gotemplate.errors import FunctionError
from libs.gotemplate.values import GoList, GoMap, Uint8, Value, type_name, zero_of


def length(value: Value) -> int:
    """Return the number of bytes, elements or entries."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, GoList):
        return len(value.items)
    if isinstance(value, GoMap):
        return len(value.entries)
    if value is None:
        raise FunctionError("reflect: call of reflect.Value.Type on zero Value")
    raise FunctionError(f"len of type {type_name(value)}")


def index(item: Value, indexes: Sequence[Value]) -> Value:
    """Return x[1][2] for `index x 1 2`; a missing key gives the zero value."""
    if item is None:
        raise FunctionError("index of untyped nil")
    for key in indexes:
        item = _element(item, key)
    return item


def _element(item: Value, key: Value) -> Value:
    if isinstance(item, bytes | GoList):
        elements = item if isinstance(item, bytes) else item.items
        position = _position(key, len(elements))
        if position == len(elements):
            kind = "string" if isinstance(item, bytes) else "slice"
            raise FunctionError(f"reflect: {kind} index out of range")
        element = elements[position]
        return Uint8(element) if isinstance(item, bytes) and isinstance(element, int) else element
    if isinstance(item, GoMap):
        if key is None:
            raise FunctionError("value is nil; should be of type string")
        if not isinstance(key, bytes):
            raise FunctionError(f"value has type {type_name(key)}; should be string")
        return item.entries[key] if key in item.entries else zero_of(item.element)
    raise FunctionError(f"can't index item of type {type_name(item)}")


def cut(item: Value, indexes: Sequence[Value]) -> Value:
    """Return x[1:2] for `slice x 1 2`."""
    if item is None:
        raise FunctionError("slice of untyped nil")
    if len(indexes) > 3:
        raise FunctionError(f"too many slice indexes: {len(indexes)}")
    if not isinstance(item, bytes | GoList):
        raise FunctionError(f"can't slice item of type {type_name(item)}")
    if isinstance(item, bytes) and len(indexes) == 3:
        raise FunctionError("cannot 3-index slice a string")
    whole = length(item)
    bounds = [0, whole]
    given = [_position(key, whole) for key in indexes]
    bounds[: len(given)] = given
    for low, high in pairwise(bounds):
        if low > high:
            raise FunctionError(f"invalid slice index: {low} > {high}")
    if isinstance(item, bytes):
        return item[bounds[0] : bounds[1]]
    return GoList(item.element, item.items[bounds[0] : bounds[1]], item.nil)


def _position(key: Value, limit: int) -> int:
    if key is None:
        raise FunctionError("cannot index slice/array with nil")
    number = key.value if isinstance(key, Uint8) else key
    if isinstance(number, bool) or not isinstance(number, int):
        raise FunctionError(f"cannot index slice/array with type {type_name(key)}")
    if not 0 <= number <= limit:
        raise FunctionError(f"index out of range: {number}")
    return number
