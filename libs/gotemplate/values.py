"""Models the values of Go's templates as Python's: a string is bytes, as in Go, and a map is a mapping."""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from libs.gotemplate.runes import encoded

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
NO_VALUE: Final = b"<no value>"


class Record(msgspec.Struct, frozen=True):
    """A struct with a fixed, ordered set of fields."""

    type_name: str
    fields: Mapping[str, "Value"]


# None is nil, and also the value of a missing map key. An empty map is Go's nil map: Talos reported none.
# Python's truth of these values is Go's: a struct is true.
Value: TypeAlias = bool | int | float | bytes | dict[bytes, bytes] | Record | None
# The types that a caller may pass as a field's value.
Given: TypeAlias = str | bool | int | Mapping[str, str]

_TYPE_NAMES: Final[dict[type, str]] = {
    type(None): "invalid", bool: "bool", int: "int", float: "float64", bytes: "string",
}  # fmt: skip


def record(type_name: str, fields: Mapping[str, Given]) -> Record:
    """Build the data for a template. Raises ValueError for an int beyond 64 bits."""
    return Record(type_name, {name: _value(given) for name, given in fields.items()})


def _value(given: Given) -> Value:
    if isinstance(given, str):
        return encoded(given)
    if isinstance(given, int):
        if not MIN_INT <= given <= MAX_INT:
            raise ValueError(f"{given} is not a 64-bit integer")
        return given
    return {encoded(key): encoded(value) for key, value in given.items()}


def type_name(value: Value) -> str:
    """Return Go's name of the value's type."""
    if isinstance(value, Record):
        return value.type_name
    return _TYPE_NAMES.get(type(value), "map[string]string")


def is_zero(value: Value) -> bool:
    """Return whether this is the zero value of its type; a struct is if all its fields are."""
    if isinstance(value, Record):
        return all(map(is_zero, value.fields.values()))
    return not value


def size(value: Value) -> int:
    """Return the approximate number of bytes to read the whole value."""
    match value:
        case bytes():
            return len(value)
        case dict():
            return sum(len(key) + len(element) for key, element in value.items())
        case Record():
            return sum(map(size, value.fields.values()))
    return 8
