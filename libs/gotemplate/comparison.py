"""Implements eq, ne, lt, le, gt, ge on Go's basic kinds, which never mix."""

from collections.abc import Sequence
from typing import Any

from libs.gotemplate.errors import FunctionError
from libs.gotemplate.values import Record, Value, type_name


def equal(first: Value, others: Sequence[Value]) -> bool:
    """Return whether the first argument equals any of the others (eq)."""
    if not others:
        raise FunctionError("missing argument for comparison")
    return any(_is_same(first, other) for other in others)


def is_less(left: Any, right: Any) -> bool:
    """Return whether left is less than right (lt)."""
    for value in (left, right):
        if not isinstance(value, int | float | bytes):
            raise FunctionError("invalid type for comparison")
    _check_types(left, right)
    if isinstance(left, bool):
        raise FunctionError("invalid type for comparison")
    return bool(left < right)


def is_less_or_equal(left: Value, right: Value) -> bool:
    """Return whether left is less than or equal to right (le)."""
    return is_less(left, right) or left == right


def _is_same(left: Value, right: Value) -> bool:
    if left is None or right is None:
        return _is_nil(left) and _is_nil(right)
    _check_types(left, right)
    if isinstance(left, dict | Record):
        raise FunctionError(f"non-comparable type {type_name(left)}: use empty or len")
    return left == right


def _is_nil(value: Value) -> bool:
    return value is None or (isinstance(value, dict) and not value)


def _check_types(left: Value, right: Value) -> None:
    if type(left) is not type(right):
        types = f"{type_name(left)} and {type_name(right)}"
        raise FunctionError(f"incompatible types for comparison: {types}")
