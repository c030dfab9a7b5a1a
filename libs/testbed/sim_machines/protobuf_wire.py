"""The proto3 encoding as COSI and Talos use it, without generated code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Scalar = int | str | bytes
Field = Scalar | Mapping[int, "Field"] | Sequence["Field"]
Fields = dict[int, list[int | bytes]]  # field number -> its values in order

_VARINT, _LENGTH = 0, 2


def encode(fields: Mapping[int, Field]) -> bytes:
    """Encode a message without zero values, as Talos since 1.12; elements of lists are always encoded."""
    out = bytearray()
    for number, value in fields.items():
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            for element in value:
                out += _encode_field(number, element)
        elif value:
            out += _encode_field(number, value)
    return bytes(out)


def _encode_field(number: int, value: Field) -> bytes:
    if isinstance(value, int):
        return _encode_varint(number << 3 | _VARINT) + _encode_varint(value)
    if isinstance(value, str):
        data = value.encode()
    elif isinstance(value, bytes):
        data = value
    elif isinstance(value, Mapping):
        data = encode(value)
    else:
        raise TypeError(f"field {number}: a list within a list")
    return _encode_varint(number << 3 | _LENGTH) + _encode_varint(len(data)) + data


def _encode_varint(value: int) -> bytes:
    if value < 0:
        raise ValueError(f"negative number: {value}")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(data: bytes) -> Fields:
    """Decode the fields of a message of numbers and bytes. Raises ValueError for other fields."""
    fields: Fields = {}
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        kind = tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, position = _read_varint(data, position)
        elif kind == _LENGTH:
            length, position = _read_varint(data, position)
            value, position = data[position : position + length], position + length
        else:
            raise ValueError(f"wire type {kind}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def get_number(fields: Fields, field: int) -> int:
    """Return the last value of a varint field, 0 without one."""
    value = fields.get(field, [0])[-1]
    assert isinstance(value, int)
    return value


def get_message(fields: Fields, field: int) -> bytes:
    """Return the last value of a bytes field, empty without one."""
    value = fields.get(field, [b""])[-1]
    assert isinstance(value, bytes)
    return value


def get_text(fields: Fields, field: int) -> str:
    """Return the last value of a text field, empty without one."""
    return get_message(fields, field).decode()
