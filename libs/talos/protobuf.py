"""The proto3 encoding: builds requests, and reads responses, of which each value is checked."""

from collections.abc import Iterator
from typing import Final

MAX_TEXT_CHARS: Final = 1024
_FIXED: Final = {1: 8, 5: 4}  # bytes, by wire type
_ONE_BYTE: Final = 0x80  # a smaller number has no further bytes

Fields = dict[int, int | bytes]  # field number -> its last value


class InvalidResponse(Exception):
    """A response that no Talos would send; the text gives the reason."""


def encode(*fields: tuple[int, int | str | bytes]) -> bytes:
    """Encode a message of numbers, texts and encoded messages, by field number. Empty values are encoded."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += _encode_varint(number << 3) + _encode_varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _encode_varint(number << 3 | 2) + _encode_varint(len(data)) + data
    return bytes(out)


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


def read_message(value: object) -> Fields:
    """Return the fields of a message. Raises InvalidResponse."""
    return dict(fields(require_bytes(value, "a message")))


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


def require_text(value: object, what: str) -> str:
    """Return a text of limited length. Raises InvalidResponse for any other value."""
    return _limit_text(require_utf8(value, what), what)


def require_smbios_text(value: object, what: str) -> str:
    """Return a text from SMBIOS: real ones contain bytes that are not UTF-8. Raises InvalidResponse.

    Such bytes become the replacement character.
    """
    return _limit_text(require_bytes(value, what).decode(errors="replace"), what)


def require_number(value: object, what: str, low: int, high: int) -> int:
    """Return a number between `low` and `high`, inclusive. Raises InvalidResponse for any other value."""
    if not isinstance(value, int) or not low <= value <= high:
        raise InvalidResponse(f"{what} is not a number between {low} and {high}")
    return value


def _limit_text(text: str, what: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidResponse(f"{what} is longer than {MAX_TEXT_CHARS} characters")
    return text


def _encode_varint(value: int) -> bytes:
    rest = value >> 7
    return bytes([value & 0x7F | _ONE_BYTE]) + _encode_varint(rest) if rest else bytes([value])


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
