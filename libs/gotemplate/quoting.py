"""Parses Go's quoted strings and characters in templates, and writes them for %q."""

import re
from typing import Final

from libs.gotemplate.runes import characters, encoded, is_invalid

_SIMPLE: Final = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
_ESCAPES: Final = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v"}
_ESCAPE: Final = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<o>[0-7]{3})|(?P<s>[abfnrtv\\'\"]))"
)
INVALID: Final = "invalid syntax"


def unquote(literal: str) -> bytes:
    """Return the value of a quoted or raw string of a template. Raises ValueError with Go's message."""
    if literal[0] == "`":
        return encoded(literal[1:-1].replace("\r", ""))
    value = bytearray()
    position, end = 1, len(literal) - 1
    while position < end:
        backslash = literal.find("\\", position, end)
        if backslash < 0:
            backslash = end
        value += encoded(literal[position:backslash])
        position = backslash
        if position < end:
            piece, position = _escape(literal, position, '"')
            value += piece if isinstance(piece, bytes) else encoded(chr(piece))
    return bytes(value)


def unquote_character(literal: str) -> int:
    """Return the rune of a character constant. Raises ValueError with Go's message."""
    if literal == "''":
        raise ValueError(INVALID)
    if literal[1] == "\\":
        piece, end = _escape(literal, 1, "'")
        rune = piece[0] if isinstance(piece, bytes) else piece
    else:
        rune, end = ord(literal[1]), 2
    if literal[end:] != "'":
        raise ValueError(f"malformed character constant: {literal}")
    return rune


def quote(text: bytes, *, ascii_only: bool = False) -> bytes:
    """Implement strconv.Quote and QuoteToASCII."""
    body = "".join(
        f"\\x{ord(c) - 0xDC00:02x}" if is_invalid(c) else _escaped(c, '"', ascii_only)
        for c in characters(text)
    )
    return f'"{body}"'.encode()


def quote_character(rune: int, *, ascii_only: bool = False) -> bytes:
    """Implement strconv.QuoteRune and QuoteRuneToASCII."""
    return f"'{_escaped(as_character(rune), chr(39), ascii_only)}'".encode()


def as_character(rune: int) -> str:
    """Return the rune as text; U+FFFD for an invalid rune."""
    return chr(rune) if 0 <= rune < 0xD800 or 0xE000 <= rune <= 0x10FFFF else "\ufffd"


def can_backquote(text: bytes) -> bool:
    """Return whether %#q writes this text between backquotes."""
    return not any(is_invalid(c) or c in "`\x7f\ufeff" or (c < " " and c != "\t") for c in characters(text))


def _escape(literal: str, position: int, delimiter: str) -> tuple[bytes | int, int]:
    """Parse one escape: a byte for hexadecimal and octal, otherwise a rune; also return its end."""
    match = _ESCAPE.match(literal, position)
    if match is None:
        raise ValueError(INVALID)
    text, digits = match[match.lastgroup or ""], match.lastgroup
    if digits == "s":
        if text in "'\"" and text != delimiter:
            raise ValueError(INVALID)
        return _SIMPLE.get(text, ord(text[0])), match.end()
    number = int(text, 8 if digits == "o" else 16)
    if digits in ("o", "x"):
        if number > 255:
            raise ValueError(INVALID)
        return bytes([number]), match.end()
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError(INVALID)
    return number, match.end()


def _escaped(character: str, delimiter: str, ascii_only: bool) -> str:
    if character in (delimiter, "\\"):
        return "\\" + character
    if character.isprintable() and (character.isascii() or not ascii_only):
        return character
    code = ord(character)
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
