"""Encodes proto3 messages as COSI and Talos do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Scalar = int | str | bytes
Field = Scalar | Mapping[int, "Field"] | Sequence["Field"]

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
