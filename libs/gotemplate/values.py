"""Models the values of Go's templates: their types, emptiness, and the conversion of input data."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from libs.gotemplate.numbers import MAX_INT, MIN_INT
from libs.gotemplate.runes import encoded


class Uint8(msgspec.Struct, frozen=True):
    """One byte of a string, a type that Go does not treat as int."""

    value: int


class GoList(msgspec.Struct, frozen=True):
    """`[]element`."""

    element: str
    items: tuple["Value", ...]
    nil: bool = False


class GoMap(msgspec.Struct, frozen=True):
    """`map[string]element`."""

    element: str
    entries: Mapping[bytes, "Value"]
    nil: bool = False


class Record(msgspec.Struct, frozen=True):
    """A struct with a fixed, ordered set of fields."""

    type_name: str
    fields: Mapping[str, "Value"]


# A string is bytes, as in Go. None is nil, and also the value of a missing map key.
Value: TypeAlias = bool | int | float | bytes | Uint8 | GoList | GoMap | Record | None
# The types that a caller may pass as a field's value.
Given: TypeAlias = str | bool | int | float | Mapping[str, str] | Sequence[str] | Record

NO_VALUE: Final = b"<no value>"
_NAMES: Final[dict[type, str]] = {
    bool: "bool", int: "int", float: "float64", bytes: "string", Uint8: "uint8",
}  # fmt: skip
_ZERO: Final[dict[str, Value]] = {"string": b"", "bool": False, "int": 0, "float64": 0.0}


def record(type_name: str, fields: Mapping[str, Given]) -> Record:
    """Build the data for a template from str, bool, int, float, mapping, sequence or record fields.

    An empty mapping or sequence becomes Go's nil map or slice, because Talos has not reported it. Raises
    ValueError for an int beyond 64 bits.
    """
    return Record(type_name, {name: _value(given) for name, given in fields.items()})


def _value(given: Given) -> Value:
    if isinstance(given, str):
        return encoded(given)
    if isinstance(given, bool | float | Record):
        return given
    if isinstance(given, int):
        if not MIN_INT <= given <= MAX_INT:
            raise ValueError(f"{given} is not a 64-bit integer")
        return given
    if isinstance(given, Mapping):
        entries: dict[bytes, Value] = {encoded(key): encoded(value) for key, value in given.items()}
        return GoMap("string", entries, nil=not entries)
    items = tuple(encoded(item) for item in given)
    return GoList("string", items, nil=not items)


def type_name(value: Value) -> str:
    """Return Go's name of the value's type."""
    if isinstance(value, Record):
        return value.type_name
    if isinstance(value, GoMap):
        return f"map[string]{value.element}"
    if isinstance(value, GoList):
        return f"[]{value.element}"
    return "invalid" if value is None else _NAMES[type(value)]


def zero_of(element: str) -> Value:
    """Return the zero value of an element type."""
    return _ZERO.get(element)


def truth(value: Value) -> bool:
    """Return Go's truth: false, 0, "", nil and empty collections are false; a struct is true."""
    if isinstance(value, GoMap):
        return bool(value.entries)
    if isinstance(value, GoList):
        return bool(value.items)
    if isinstance(value, Uint8):
        return bool(value.value)
    return isinstance(value, Record) or bool(value)


def is_zero(value: Value) -> bool:
    """Return whether this is the zero value of its type.

    A struct is zero if all its fields are. A collection is zero if it is nil, not if it is only empty.
    """
    if isinstance(value, Record):
        return all(is_zero(field) for field in value.fields.values())
    if isinstance(value, GoMap | GoList):
        return value.nil
    return not truth(value)


def is_nil(value: Value) -> bool:
    """Return whether the value is nil, or a nil map or slice."""
    return value is None or (isinstance(value, GoMap | GoList) and value.nil)


def size(value: Value) -> int:
    """Return the approximate number of bytes to read the whole value."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, GoList):
        return sum(map(size, value.items)) + len(value.items)
    if isinstance(value, GoMap):
        return sum(len(key) + size(element) for key, element in value.entries.items())
    if isinstance(value, Record):
        return sum(map(size, value.fields.values()))
    return 8
