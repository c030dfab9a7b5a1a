"""Decodes base64 like Go's base64.StdEncoding, with Go's position of the first error."""

import base64
import re
from typing import Final

from libs.gotemplate.errors import FunctionError

_DIGIT: Final = re.compile(rb"[A-Za-z0-9+/]")
_BREAKS: Final = b"\r\n"  # Go skips them anywhere


def decode(encoded: bytes) -> bytes:
    """Return the decoded bytes; padding is required. Raises FunctionError with Go's message."""
    wrong = _wrong_byte(encoded)
    if wrong is not None:
        raise FunctionError(f"illegal base64 data at input byte {wrong}")
    return base64.b64decode(encoded.translate(None, _BREAKS))


def _wrong_byte(encoded: bytes) -> int | None:
    position = digits = 0
    while position < len(encoded):
        character = encoded[position : position + 1]
        position += 1
        if _DIGIT.match(character):
            digits = (digits + 1) % 4
        elif character not in (b"\r", b"\n"):
            return _wrong_end(encoded, position, digits) if character == b"=" else position - 1
    return position - digits if digits else None


def _wrong_end(encoded: bytes, position: int, digits: int) -> int | None:
    """Return the position of an error in the padding, or None.

    The first = is before `position`, after `digits` digits of its group.
    """
    if digits < 2:
        return position - 1
    if digits == 2:
        position = _after_breaks(encoded, position)
        if position == len(encoded):
            return position
        if encoded[position : position + 1] != b"=":
            return position - 1
        position += 1
    position = _after_breaks(encoded, position)
    return position if position < len(encoded) else None


def _after_breaks(encoded: bytes, position: int) -> int:
    while position < len(encoded) and encoded[position] in _BREAKS:
        position += 1
    return position
