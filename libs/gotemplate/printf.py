"""Formats values like Go's Sprint and Sprintf, with the verbs and flags of the table below."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.gotemplate.bounds import MAX_TEXT, BoundExceeded, fits
from libs.gotemplate.errors import FunctionError
from libs.gotemplate.quoting import quote
from libs.gotemplate.runes import characters, raw
from libs.gotemplate.values import Record, Value, type_name

# Which flags a verb accepts; "." is a precision.
_FLAGS: Final = {
    "v": "-0",
    "s": "-0.",
    "q": "-0.",
    "d": "-0+ .",
    "x": "-0",
    "X": "-0",
    "t": "-0",
    "f": "-0+ .",
    "%": "",
}
# Go has more verbs for these types.
_REFUSED: Final = {("q", int): "use %d", ("x", float): "use %f or %v", ("X", float): "use %f or %v"}
_INSTEAD: Final = {
    "*": "write the width as a number",
    "[": "give the arguments in the order of the verbs",
    "": "write %% for a percent sign",
}
_PIECE: Final = re.compile(r"(?s)([^%]+)|%([-+# 0]*)([0-9]{0,9})(\.[0-9]{0,9})?(.?)")


class Directive(msgspec.Struct, frozen=True):
    """One verb of a format, with its flags."""

    verb: str
    flags: str = ""
    width: int = 0
    precision: int | None = None


_PLAIN: Final = Directive("v")


def parse_format(template: bytes) -> list[str | Directive]:
    """Return the texts and directives of a format. Raises FunctionError for an unsupported verb or flag."""
    pieces: list[str | Directive] = []
    for text, flags, width, precision, verb in _PIECE.findall(characters(template)):
        if text or verb == "%":
            pieces.append(text or verb)
            continue
        if verb not in _FLAGS:
            instead = _INSTEAD.get(verb, "use %v, %s, %q, %d, %x, %X, %f or %t")
            raise FunctionError(
                f"printf does not support {raw('%' + verb).decode(errors='replace')}: {instead}"
            )
        for flag in flags + precision[:1]:
            if flag not in _FLAGS[verb]:
                raise FunctionError(f"printf does not support %{flag}{verb}: use %{verb} without {flag!r}")
        pieces.append(Directive(verb, flags, int(width or 0), int(precision[1:] or 0) if precision else None))
    return pieces


def sprintf(template: bytes, arguments: Sequence[Value]) -> bytes:
    """Implement fmt.Sprintf, with Go's texts for errors, such as `%!d(string=x)` and `%!s(MISSING)`."""
    text, used = "", 0
    for piece in parse_format(template):
        if isinstance(piece, str):
            text += piece
        elif used < len(arguments):
            text += _format(arguments[used], piece)
            used += 1
        else:
            text += f"%!{piece.verb}(MISSING)"
        _check_length(text)
    if used < len(arguments):
        text += f"%!(EXTRA {', '.join(map(_typed, arguments[used:]))})"
    return raw(text)


def sprint(values: Sequence[Value]) -> bytes:
    """Implement fmt.Sprint: a space between two operands if neither is a string."""
    text = ""
    for position, value in enumerate(values):
        if position and not isinstance(value, bytes) and not isinstance(values[position - 1], bytes):
            text += " "
        text += _format(value, _PLAIN)
        _check_length(text)
    return raw(text)


def sprintln(values: Sequence[Value]) -> bytes:
    """Implement fmt.Sprintln."""
    return raw(" ".join(_format(value, _PLAIN) for value in values) + "\n")


def _check_length(text: str) -> None:
    if len(text) > MAX_TEXT:  # characters: `fits` checks the bytes of the result
        raise BoundExceeded(f"a text is longer than MAX_TEXT = {MAX_TEXT} bytes")


def _format(value: Value, how: Directive) -> str:
    """Return the value as text; an invalid byte is a lone surrogate, as in `characters`."""
    fits(max(how.width, how.precision or 0))
    if instead := _REFUSED.get((how.verb, type(value))):
        raise FunctionError(f"printf does not support %{how.verb} of {type_name(value)}: {instead}")
    if isinstance(value, dict):
        fits(2 * len(value) * how.width)
        pairs = (f"{_format(key, how)}:{_format(value[key], how)}" for key in sorted(value))
        return f"map[{' '.join(pairs)}]"
    if isinstance(value, Record):
        return f"{{{' '.join(_format(field, how) for field in value.fields.values())}}}"
    text = _format_basic(value, how)
    return f"%!{how.verb}({_typed(value, how)})" if text is None else text


def _format_basic(value: Value, how: Directive) -> str | None:
    """Return the value as text; None if the verb does not fit its type."""
    match value, how.verb:
        case None, "v":
            return _pad("<nil>", how)
        case bool(), verb:
            return _pad("true" if value else "false", how) if verb in "tv" else None
        case int(), "d" | "v" | "x" | "X":
            digits = format(value, "d" if how.verb == "v" else how.verb)
            return _pad_number("" if digits == "0" and how.precision == 0 else digits, how, how.precision)
        case float(), "f":
            return _pad_number(f"{value:.{6 if how.precision is None else how.precision}f}", how)
        case float(), "v":
            return _pad_number(_shortest(value), how)
        case bytes(), "v" | "s" | "q":
            text = characters(value)[: how.precision]
            return _pad(quote(raw(text)) if how.verb == "q" else text, how)
        case bytes(), "x" | "X":
            return _pad(value.hex() if how.verb == "x" else value.hex().upper(), how)
    return None


def _typed(value: Value, how: Directive = _PLAIN) -> str:
    if value is None:
        return "<nil>"
    return f"{type_name(value)}={_format(value, msgspec.structs.replace(how, verb='v'))}"


def _pad(text: str, how: Directive) -> str:
    if "-" in how.flags:
        return text.ljust(how.width)
    return text.rjust(how.width, "0" if "0" in how.flags else " ")


def _pad_number(text: str, how: Directive, least_digits: int | None = None) -> str:
    """Pad with zeros after the sign, or with spaces; without the flag 0 if there is a precision."""
    sign = "-" if text.startswith("-") else next((flag for flag in "+ " if flag in how.flags), "")
    if least_digits is None:
        least_digits = how.width - len(sign) if "0" in how.flags and "-" not in how.flags else 0
    number = sign + text.removeprefix("-").rjust(least_digits, "0")
    return number.ljust(how.width) if "-" in how.flags else number.rjust(how.width)


def _shortest(value: float) -> str:
    """Return the shortest text that identifies this float; from 1e+06 on with an exponent."""
    text = repr(value).removesuffix(".0")
    if abs(value) < 1e6:
        return text
    digits = text.partition("e")[0].replace(".", "").strip("-0")
    return f"{value:.{len(digits) - 1}e}"
