"""Decoding that refuses what betterproto2 lets pass: truncated fields and foreign wire types."""

from typing import Protocol, Self, TypeVar


class Message(Protocol):
    """A generated message."""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Decode, leniently."""


M = TypeVar("M", bound=Message)


class Malformed(Exception):
    """Bytes that are not the protobuf message they are said to be."""


def parse(message: type[M], data: bytes) -> M:
    """The decoded message. Raises Malformed and nothing else; fields may still have the wrong Python type."""
    end = _end_of_last_field(data)
    if end != len(data):
        raise Malformed(f"{message.__name__} is cut off: {len(data)} bytes of at least {end}")
    try:
        return message.parse(data)
    except Exception as error:  # the library raises whatever hostile bytes lead to (KeyError, EOFError, ...)
        raise Malformed(f"{message.__name__} is not decodable: {type(error).__name__}: {error}") from error


def _end_of_last_field(data: bytes) -> int:
    """Where the last field says that it ends: beyond the data if the message is truncated."""
    position, size = 0, len(data)
    while position < size:
        tag, position = _varint(data, position)
        match tag & 7:
            case wire if tag >> 3 == 0:
                raise Malformed(f"field number 0 of wire type {wire}")
            case 0:
                _, position = _varint(data, position)
            case 1:
                position += 8
            case 2:
                length, position = _varint(data, position)
                position += length
            case 5:
                position += 4
            case wire:
                raise Malformed(f"wire type {wire}")
    return position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise Malformed("cut off inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise Malformed("a number of more than ten bytes")
