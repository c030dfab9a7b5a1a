"""Formats numbers like Go's fmt with flags, width and precision; the caller adds the padding."""

from math import isfinite, isnan
from typing import Final

import msgspec

from libs.gotemplate.bounds import fits

_DIGITS: Final = "0123456789abcdef"
_PREFIXES: Final = {2: "0b", 16: "0x"}
_FORMATS: Final = {2: "b", 8: "o", 10: "d", 16: "x"}
_SHORTEST_EXPONENT: Final = 6  # %v and %g without precision write an exponent from 1e+06 on


class Flags(msgspec.Struct):
    """The flags, width and precision between % and the verb."""

    minus: bool = False
    plus: bool = False
    sharp: bool = False
    space: bool = False
    zero: bool = False
    plus_v: bool = False  # %+v: field names
    sharp_v: bool = False  # %#v: Go syntax
    width: int | None = None
    precision: int | None = None


def format_integer(value: int, base: int, verb: str, flags: Flags) -> str:
    """Format an integer in a base; "" for %.0d of 0."""
    if flags.precision == 0 and value == 0:
        return ""
    signed = value < 0 or flags.plus or flags.space
    precision = flags.precision or 0
    if flags.precision is None and flags.zero and not flags.minus and flags.width is not None:
        precision = flags.width - signed
    fits(precision)
    digits = format(abs(value), _FORMATS[base]).rjust(precision, "0")
    if flags.sharp:
        if base == 8 and digits[0] != "0":
            digits = "0" + digits
        digits = _PREFIXES.get(base, "") + digits
    if verb == "O":
        digits = "0o" + digits
    if verb == "X":
        digits = digits.upper()
    return _sign(value < 0, flags) + digits


def format_unicode(value: int, flags: Flags) -> str:
    """Format for %U: U+0078, and with # also the character."""
    precision = max(4, flags.precision or 0)
    fits(precision)
    code = value % 2**64
    text = f"U+{code:0{precision}X}"
    if flags.sharp and code <= 0x10FFFF and chr(code).isprintable():
        text += f" '{chr(code)}'"
    return text


def format_float(value: float, verb: str, precision: int | None, flags: Flags) -> str:
    """Format a float with its sign if it needs one, without padding."""
    precision = precision if flags.precision is None else flags.precision
    fits(precision or 0)
    if not isfinite(value):
        return _infinite(value, flags)
    sign = "-" if str(value)[0] == "-" else ""
    digits = _unsigned(abs(value), verb, precision)
    if flags.sharp and verb != "b":
        digits = _with_point(digits, verb, precision)
    return (sign or _sign(False, flags)) + digits


def _sign(negative: bool, flags: Flags) -> str:
    if negative:
        return "-"
    if flags.plus:
        return "+"
    return " " if flags.space else ""


def _infinite(value: float, flags: Flags) -> str:
    if isnan(value):
        return _sign(False, flags) + "NaN"
    if value < 0:
        return "-Inf"
    return "+Inf" if flags.plus or not flags.space else " Inf"


def _unsigned(value: float, verb: str, precision: int | None) -> str:
    match verb:
        case "f":
            return _plain(value) if precision is None else f"{value:.{precision}f}"
        case "e" | "E":
            text = _scientific(value) if precision is None else f"{value:.{precision}e}"
        case "x" | "X":
            text = _hexadecimal(value, precision)
        case "b":
            return _binary(value)
        case _:
            text = _general(value, precision)
    return text.upper() if verb.isupper() else text


def _shortest(value: float) -> tuple[str, int]:
    """Return the shortest digits that identify this float, and the position of the point before them."""
    mantissa, _, exponent = f"{value!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return (digits, point) if digits else ("0", 1)


def _scientific(value: float) -> str:
    digits, point = _shortest(value)
    return _with_exponent(digits, 0 if value == 0 else point - 1)


def _with_exponent(digits: str, exponent: int) -> str:
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _plain(value: float) -> str:
    digits, point = _shortest(value)
    if point <= 0:
        return "0." + "0" * -point + digits if digits != "0" else "0"
    if len(digits) <= point:
        return digits + "0" * (point - len(digits))
    return digits[:point] + "." + digits[point:]


def _general(value: float, precision: int | None) -> str:
    """Format for %g: like %e for large and small exponents, otherwise like %f; no trailing zeros."""
    if precision is None:
        digits, point = _shortest(value)
        threshold = _SHORTEST_EXPONENT
    else:
        wanted = precision or 1
        mantissa, _, exponent = f"{value:.{wanted - 1}e}".partition("e")
        digits, point = mantissa.replace(".", "").rstrip("0") or "0", int(exponent) + 1
        threshold = len(digits) if wanted > len(digits) >= point else wanted
    exponent_of_ten = 0 if value == 0 else point - 1
    if exponent_of_ten < -4 or exponent_of_ten >= threshold:
        return _with_exponent(digits, exponent_of_ten)
    if digits == "0":
        return "0"
    if point <= 0:
        return "0." + "0" * -point + digits
    return (
        digits + "0" * (point - len(digits)) if len(digits) <= point else f"{digits[:point]}.{digits[point:]}"
    )


def _binary(value: float) -> str:
    """Format for %b: mantissa and power of two."""
    numerator, denominator = value.as_integer_ratio()
    exponent = 1 - denominator.bit_length()
    if value == 0:
        return "0p-1074"
    while numerator.bit_length() < 53 and exponent > -1074:
        numerator, exponent = numerator << 1, exponent - 1
    while numerator.bit_length() > 53:
        numerator, exponent = numerator >> 1, exponent + 1
    return f"{numerator}p{exponent:+d}"


def _hexadecimal(value: float, precision: int | None) -> str:
    """Format for %x: 0x1.8p+01."""
    mantissa, _, exponent = value.hex().partition("p")
    fraction = mantissa.partition(".")[2].rstrip("0")
    lead, power = int(mantissa[2]), int(exponent)
    if value and not lead:  # a subnormal: Go normalises it
        bits = int(fraction, 16)
        shift = 4 * len(fraction) - bits.bit_length() + 1
        fraction = format((bits << shift) & (16 ** len(fraction) - 1), f"0{len(fraction)}x").rstrip("0")
        lead, power = 1, power - shift
    if precision is not None and precision < len(fraction):
        unit = 16 ** (len(fraction) - precision)
        whole, rest = divmod(int(f"{lead}{fraction}", 16), unit)
        whole += rest * 2 > unit or (rest * 2 == unit and whole & 1)
        if whole >> (4 * precision) >= 2:
            whole, power = whole >> 1, power + 1
        lead, fraction = whole >> (4 * precision), format(whole & (16**precision - 1), f"0{precision}x")
        fraction = fraction if precision else ""
    elif precision is not None:
        fraction = fraction.ljust(precision, "0")
    point = "." if fraction else ""
    return f"0x{lead}{point}{fraction}p{'-' if power < 0 else '+'}{abs(power):02d}"


def _with_point(text: str, verb: str, precision: int | None) -> str:
    """Apply #: add a decimal point and, for %g, the zeros that it would drop."""
    wanted = 0
    if verb in "gGx":
        wanted = 6 if precision is None else precision
    marks = "pP" if verb in "xX" else "eE"
    cut = next((i for i, c in enumerate(text) if c in marks), len(text))
    body, tail = text[:cut], text[cut:]
    significant = body.replace(".", "").lstrip("0")
    if verb not in "gGx":
        significant = ""
    wanted -= len(significant)
    if "." not in body:
        wanted -= body == "0"
        body += "."
    return body + "0" * max(0, wanted) + tail
