"""Implements eq, ne, lt, le, gt, ge on Go's basic kinds, which never mix, except int with uint8."""

from collections.abc import Sequence
from typing import Any, Final

from libs.gotemplate.errors import FunctionError
from libs.gotemplate.printf import sprintf
from libs.gotemplate.runes import valid
from libs.gotemplate.values import GoList, GoMap, Record, Uint8, Value, is_nil, type_name

_KINDS: Final[dict[type, str]] = {
    bool: "bool", int: "integer", Uint8: "integer", float: "float", bytes: "string",
}  # fmt: skip
_BAD_TYPE: Final = "invalid type for comparison"


def equal(arguments: Sequence[Value]) -> bool:
    """Return whether the first argument equals any of the others (eq)."""
    first, others = arguments[0], arguments[1:]
    if not others:
        raise FunctionError("missing argument for comparison")
    return any(_same(first, other) for other in others)


def less(left: Value, right: Value) -> bool:
    """Return whether left is less than right (lt)."""
    kind = _KINDS.get(type(left))
    other = _KINDS.get(type(right))
    if kind is None or other is None:
        raise FunctionError(_BAD_TYPE)
    if kind != other:
        raise _incompatible(left, right)
    if kind == "bool":
        raise FunctionError(_BAD_TYPE)
    return bool(_plain(left) < _plain(right))


def less_or_equal(left: Value, right: Value) -> bool:
    """Return whether left is less than or equal to right (le)."""
    return less(left, right) or equal((left, right))


def _same(left: Value, right: Value) -> bool:
    kind = _KINDS.get(type(left))
    if kind != _KINDS.get(type(right)):
        if left is None or right is None:
            return False
        raise _incompatible(left, right)
    if kind is not None:
        return bool(_plain(left) == _plain(right))
    return _same_composite(left, right)


def _same_composite(left: Value, right: Value) -> bool:
    """Compare maps, slices and structs with nil, and structs with each other."""
    if left is not None and right is not None and type(left) is not type(right):
        types = type_name(left).encode(), type_name(right).encode()
        raise _refused(b"non-comparable types %s: %s, %s: %v", left, types[0], types[1], right)
    if is_nil(left) or is_nil(right):
        return is_nil(left) == is_nil(right)
    if not _comparable(right):
        raise _refused(b"non-comparable type %s: %s", right, type_name(right).encode())
    return left == right


def _comparable(value: Value) -> bool:
    if isinstance(value, GoMap | GoList):
        return False
    return not isinstance(value, Record) or all(map(_comparable, value.fields.values()))


def _plain(value: Value) -> Any:
    return value.value if isinstance(value, Uint8) else value


def _refused(template: bytes, *values: Value) -> FunctionError:
    return FunctionError(valid(sprintf(template, values)))


def _incompatible(left: Value, right: Value) -> FunctionError:
    return FunctionError(f"incompatible types for comparison: {type_name(left)} and {type_name(right)}")
