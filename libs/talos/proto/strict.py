"""Strict decoding: rejects truncated fields and wrong wire types, which betterproto2 accepts."""

from collections.abc import Iterator
from typing import Final, TypeVar

import betterproto2

_FIXED: Final = {1: 8, 5: 4}  # bytes, by wire type
_ONE_BYTE: Final = 0x80  # a smaller number has no further bytes


M = TypeVar("M", bound=betterproto2.Message)


class InvalidResponse(Exception):
    """A response that no Talos would send; the text gives the reason."""


def parse(message: type[M], data: bytes) -> M:
    """Decode a message; fields may have the wrong Python type. Raises InvalidResponse and nothing else."""
    for _ in fields(data):
        pass  # rejects truncated fields
    try:
        return message.parse(data)
    except Exception as error:  # hostile bytes make the library raise many types (KeyError, EOFError, ...)
        raise InvalidResponse(
            f"{message.__name__} is not decodable: {type(error).__name__}: {error}"
        ) from error


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field in order: an int, or bytes if the length is known.

    Raises InvalidResponse.
    """
    at, size = 0, len(data)
    while at < size:
        tag = data[at]
        if tag < _ONE_BYTE:  # as nearly always; a call would cost more than the rest
            at += 1
        else:
            tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not number:
            raise InvalidResponse(f"field number 0 of wire type {wire}")
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            if at < size and (length := data[at]) < _ONE_BYTE:
                at += 1
            else:
                length, at = _varint(data, at)
        elif wire in _FIXED:
            length = _FIXED[wire]
        else:
            raise InvalidResponse(f"wire type {wire}")
        if at + length > size:
            raise InvalidResponse(f"field {number} is cut off: {size} bytes of at least {at + length}")
        yield number, data[at : at + length]
        at += length


def require_bytes(value: object, what: str) -> bytes:
    """Return bytes. Raises InvalidResponse for any other value."""
    if not isinstance(value, bytes):
        raise InvalidResponse(f"{what} is not made of bytes")
    return value


def require_utf8(value: object, what: str) -> str:
    """Return the text of a field. Raises InvalidResponse for any other value."""
    try:
        return require_bytes(value, what).decode()
    except UnicodeDecodeError as error:
        raise InvalidResponse(f"{what} is not text") from error


def _varint(data: bytes, position: int) -> tuple[int, int]:
    if position < len(data) and data[position] < _ONE_BYTE:
        return data[position], position + 1
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise InvalidResponse("cut off inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _ONE_BYTE:
            return value, position
    raise InvalidResponse("a number of more than ten bytes")
