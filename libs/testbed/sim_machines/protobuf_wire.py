"""The proto3 encoding as COSI and Talos use it, without generated code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Scalar = int | str | bytes
Field = Scalar | Mapping[int, "Field"] | Sequence["Field"]
Fields = dict[int, list[int | bytes]]  # field number -> its values in order

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BITS = 64


class MalformedMessage(ValueError):
    """The bytes are not a valid message."""


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
    """Decode the fields of a message; numbers of fixed width stay bytes. Raises MalformedMessage."""
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
            value, position = _read_bytes(data, position, length)
        elif kind in _FIXED_BYTES:
            value, position = _read_bytes(data, position, _FIXED_BYTES[kind])
        else:
            raise MalformedMessage(f"wire type {kind}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _MAX_VARINT_BITS, 7):
        if position >= len(data):
            raise MalformedMessage("the message ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedMessage("a number of more than 64 bits")


def _read_bytes(data: bytes, position: int, length: int) -> tuple[bytes, int]:
    end = position + length
    if end > len(data):
        raise MalformedMessage(f"{length} bytes announced, {len(data) - position} left")
    return data[position:end], end


def get_number(fields: Fields, field: int) -> int:
    """Return the last value of a varint field, 0 without one. Raises MalformedMessage."""
    value = fields.get(field, [0])[-1]
    if not isinstance(value, int):
        raise MalformedMessage(f"field {field} is not a number")
    return value


def get_message(fields: Fields, field: int) -> bytes:
    """Return the last value of a bytes field, empty without one. Raises MalformedMessage."""
    return get_messages(fields, field)[-1] if field in fields else b""


def get_messages(fields: Fields, field: int) -> list[bytes]:
    """Return every value of a bytes field. Raises MalformedMessage."""
    values: list[bytes] = []
    for value in fields.get(field, []):
        if not isinstance(value, bytes):
            raise MalformedMessage(f"field {field} is a number")
        values.append(value)
    return values


def get_text(fields: Fields, field: int) -> str:
    """Return the last value of a text field, empty without one. Raises MalformedMessage."""
    try:
        return get_message(fields, field).decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"field {field} is not UTF-8") from error
