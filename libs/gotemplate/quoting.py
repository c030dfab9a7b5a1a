"""Parses Go's quoted strings and numbers in templates, and quotes texts for %q and errors."""

import re
from math import isinf
from typing import Final

from libs.gotemplate.runes import characters, encoded, is_invalid, raw
from libs.gotemplate.values import MAX_INT, MIN_INT

_SIMPLE: Final = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34}
_ESCAPES: Final = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v"}
_ESCAPE: Final = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<o>[0-7]{3})|"
    r'(?P<s>[abfnrtv\\"])|(?P<invalid>))'
)

_HEXADECIMAL: Final = ("0x", "+0x", "-0x")
_REFUSED: Final = {
    ".*i": "complex constants",
    ".*[pP].*": "hexadecimal floats",
    "[+-]?0[0-9_]+": "octal constants",
}


def unquote(literal: str) -> bytes:
    """Return the value of a quoted or raw string of a template. Raises ValueError with Go's message."""
    if literal[0] == "`":
        return encoded(literal[1:-1].replace("\r", ""))
    return raw(_ESCAPE.sub(_escaped_character, characters(encoded(literal[1:-1]))))


def parse_number(text: str) -> int | float:
    """Parse a number constant. Raises ValueError with the reason."""
    for pattern, kind in _REFUSED.items():
        if re.fullmatch(pattern, text):
            raise ValueError(f"{kind} such as {text} are not supported: write a decimal number")
    is_float = not text.lower().startswith(_HEXADECIMAL) and set(text) & set(".eE")
    try:
        number = float(text) if is_float else int(text, 0)
    except ValueError:
        raise ValueError(f"illegal number syntax: {quote_text(text)}") from None
    if isinf(number) or (isinstance(number, int) and not MIN_INT <= number <= MAX_INT):
        raise ValueError(f"number out of range: {quote_text(text)}")
    return number


def quote(text: bytes) -> str:
    """Implement strconv.Quote."""
    return '"' + "".join(map(_quoted_character, characters(text))) + '"'


def quote_text(text: str) -> str:
    """Quote a part of the source."""
    return quote(encoded(text))


def _escaped_character(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    if kind == "s":
        return chr(_SIMPLE[match[kind]])
    number = int(match[kind], 8 if kind == "o" else 16) if match[kind] else 0x110000
    if kind in "xo" and number <= 255:
        return characters(bytes([number]))
    if kind in "xo" or number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError("invalid syntax")
    return chr(number)


def _quoted_character(character: str) -> str:
    code = ord(character)
    if is_invalid(character):
        return f"\\x{code - 0xDC00:02x}"
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
