"""Parses Go's number and character constants, and derives the type of an untyped constant."""

import re
from typing import Final

import msgspec

from libs.gotemplate.quoting import quote, unquote_character
from libs.gotemplate.runes import encoded

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
_MAX_UINT: Final = 2**64 - 1
_INTEGER: Final = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<x>(?:_?[0-9a-fA-F])+)|0[bB](?P<b>(?:_?[01])+)|0[oO]?(?P<o>(?:_?[0-7])+)|(?P<d>0|[1-9](?:_?[0-9])*))"
)
_BASES: Final = {"x": 16, "b": 2, "o": 8, "d": 10}
_DIGITS: Final = r"[0-9](?:_?[0-9])*"
_FLOAT: Final = re.compile(rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEX: Final = r"[0-9a-fA-F](?:_?[0-9a-fA-F])*"
_HEX_FLOAT: Final = re.compile(rf"[+-]?0[xX]_?(?:{_HEX}\.?(?:{_HEX})?|\.{_HEX})[pP][+-]?{_DIGITS}")
_LONGEST: Final = 1000  # characters of a constant; longer ones only cost time


class Number(msgspec.Struct, frozen=True):
    """A constant: its integer value or None, its float value, and whether its syntax is that of a float."""

    integer: int | None
    floating: float
    looks_float: bool = False


def parse_number(text: str) -> Number:
    """Parse a number or character constant. Raises ValueError with Go's message."""
    if text.startswith("'"):
        rune = unquote_character(text)
        return Number(rune, float(rune))
    if text.endswith("i"):
        raise ValueError(f"complex constants such as {text} are not supported")
    if len(text) > _LONGEST:
        raise ValueError(f"a number has more than {_LONGEST} characters")
    match = _INTEGER.fullmatch(text)
    if match is not None:
        return _integer(text, match)
    if not (_FLOAT.fullmatch(text) or _HEX_FLOAT.fullmatch(text)):
        raise ValueError(f"illegal number syntax: {quote(encoded(text)).decode()}")
    if not set(text) & set(".eEpP"):
        raise ValueError(f"integer overflow: {quote(encoded(text)).decode()}")
    value = _float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"illegal number syntax: {quote(encoded(text)).decode()}")
    whole = value.is_integer() and MIN_INT <= value <= MAX_INT
    return Number(int(value) if whole else None, value, looks_float=True)


def _integer(text: str, match: re.Match[str]) -> Number:
    group = match.lastgroup or ""
    value = int(match[group].replace("_", ""), _BASES[group])
    if match["sign"] == "-":
        value = -value
    if value > _MAX_UINT or value < MIN_INT or (match["sign"] == "+" and value > MAX_INT):
        raise ValueError(f"integer overflow: {quote(encoded(text)).decode()}")
    return Number(value, float(value))


def _float(text: str) -> float:
    digits = text.replace("_", "")
    try:
        return float.fromhex(digits) if "x" in digits.lower() else float(digits)
    except OverflowError:
        return float("inf")
