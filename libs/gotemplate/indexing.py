"""Implements len, index and slice: strings by bytes, maps by key."""

from collections.abc import Sequence
from itertools import pairwise

from libs.gotemplate.errors import FunctionError
from libs.gotemplate.values import Value, type_name


def length(value: Value) -> int:
    """Return the number of bytes or entries."""
    if isinstance(value, bytes | dict):
        return len(value)
    raise FunctionError("len of nil" if value is None else f"len of type {type_name(value)}")


def index(item: Value, keys: Sequence[Value]) -> Value:
    """Return an entry of a map, "" if it is missing."""
    if item is None:
        raise FunctionError("index of untyped nil")
    for key in keys:
        if isinstance(item, bytes):
            raise FunctionError("index of a string is not supported: use slice, such as slice .Zone 0 1")
        if not isinstance(item, dict):
            raise FunctionError(f"can't index item of type {type_name(item)}")
        if key is None:
            raise FunctionError("value is nil; should be of type string")
        if not isinstance(key, bytes):
            raise FunctionError(f"value has type {type_name(key)}; should be string")
        item = item.get(key, b"")
    return item


def cut(item: Value, indexes: Sequence[Value]) -> bytes:
    """Return x[1:2] for `slice x 1 2`."""
    if item is None:
        raise FunctionError("slice of untyped nil")
    if not isinstance(item, bytes):
        raise FunctionError(f"can't slice item of type {type_name(item)}")
    if len(indexes) > 2:
        raise FunctionError("cannot 3-index slice a string")
    bounds = [0, len(item)]
    bounds[: len(indexes)] = [_position(key, len(item)) for key in indexes]
    for low, high in pairwise(bounds):
        if low > high:
            raise FunctionError(f"invalid slice index: {low} > {high}")
    return item[bounds[0] : bounds[1]]


def _position(key: Value, limit: int) -> int:
    if isinstance(key, bool) or not isinstance(key, int):
        shown = "nil" if key is None else f"type {type_name(key)}"
        raise FunctionError(f"cannot index slice/array with {shown}")
    if not 0 <= key <= limit:
        raise FunctionError(f"index out of range: {key}")
    return key
