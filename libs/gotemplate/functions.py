"""The functions of templates: those of text/template and of the reference controller."""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from libs.gotemplate import regular_expressions
from libs.gotemplate.bounds import Budget, fits
from libs.gotemplate.comparison import equal, is_less, is_less_or_equal
from libs.gotemplate.errors import FunctionError
from libs.gotemplate.indexing import cut, index, length
from libs.gotemplate.printf import sprint, sprintf, sprintln
from libs.gotemplate.runes import characters, lower, raw, trim, upper
from libs.gotemplate.values import Value, is_zero

# "any" is interface{} or reflect.Value: it accepts every value, including nil.
Parameter = Literal["string", "int", "bool", "any"]


class Function(msgspec.Struct, frozen=True):
    """A template function; `rest` is the type of variadic arguments, None if there are none."""

    parameters: tuple[Parameter, ...]
    run: Callable[[Sequence[Value], Budget], Value]
    rest: Parameter | None = None

    def parameters_for(self, count: int) -> Sequence[Parameter]:
        """Return the parameter types for `count` arguments."""
        rest = () if self.rest is None else (self.rest,) * (count - len(self.parameters))
        return (*self.parameters, *rest)


def _of_strings(count: int, run: Callable[..., Value]) -> Function:
    """Return a cheap function with `count` string parameters."""
    string: Parameter = "string"
    return Function((string,) * count, lambda given, _: run(*given))


def _of_any(count: int, run: Callable[..., Value], *, rest: bool = False) -> Function:
    """Return a function with `count` parameters of any type; `rest` passes further ones as one sequence."""

    def call(given: Sequence[Value], _: Budget) -> Value:
        return run(*given[:count], given[count:]) if rest else run(*given)

    anything: Parameter = "any"
    return Function((anything,) * count, call, "any" if rest else None)


def _text(value: Value) -> bytes:
    """Narrow an argument whose parameter type is string."""
    assert isinstance(value, bytes)
    return value


def _default(fallback: Value, given: Sequence[Value]) -> Value:
    return fallback if not given or is_zero(given[0]) else given[0]


def _coalesce(given: Sequence[Value]) -> Value:
    return next((value for value in given if not is_zero(value)), None)


def _replace(given: Sequence[Value], budget: Budget) -> Value:
    old, new, whole = map(_text, given)
    if not old:  # Go inserts the new text around each rune
        count = len(characters(whole)) + 1
        fits(len(whole) + count * len(new))
        return raw(characters(new).join(["", *characters(whole), ""]))
    budget.read(len(whole))
    fits(len(whole) + whole.count(old) * (len(new) - len(old)))
    return whole.replace(old, new)


def _get_value(source: bytes, key: bytes) -> Value:
    for part in source.split(b";"):
        name, *values = part.split(b"=")
        if name == key:
            return values[0] if values else b""
    return b""


def _base64_decode(text: bytes) -> Value:
    try:  # Go skips line breaks anywhere
        return base64.b64decode(text.translate(None, b"\r\n"), validate=True)
    except binascii.Error as error:
        raise FunctionError(f"illegal base64 data: {error}") from error


def _find(given: Sequence[Value], budget: Budget) -> Value:
    pattern, whole, group = given if len(given) == 3 else (*given, 0)
    assert isinstance(group, int)
    return regular_expressions.find(_text(pattern), _text(whole), group, budget)


def _replace_all(given: Sequence[Value], budget: Budget) -> Value:
    pattern, whole, replacement = map(_text, given)
    return regular_expressions.replace_all(pattern, whole, replacement, budget)


_OF_GO: Final = {
    # the evaluator implements `and` and `or`; these entries define their parameters
    "and": _of_any(1, lambda _, __: None, rest=True),
    "or": _of_any(1, lambda _, __: None, rest=True),
    "not": _of_any(1, lambda value: not value),
    "eq": _of_any(1, equal, rest=True),
    "ne": _of_any(2, lambda left, right: not equal(left, [right])),
    "lt": _of_any(2, is_less),
    "le": _of_any(2, is_less_or_equal),
    "gt": _of_any(2, lambda left, right: not is_less_or_equal(left, right)),
    "ge": _of_any(2, lambda left, right: not is_less(left, right)),
    "len": _of_any(1, length),
    "index": _of_any(1, index, rest=True),
    "slice": _of_any(1, cut, rest=True),
    "print": _of_any(0, sprint, rest=True),
    "println": _of_any(0, sprintln, rest=True),
    "printf": Function(("string",), lambda given, _: sprintf(_text(given[0]), given[1:]), "any"),
}
_OF_THE_REFERENCE: Final = {
    "default": _of_any(1, _default, rest=True),
    "empty": _of_any(1, is_zero),
    "coalesce": _of_any(0, _coalesce, rest=True),
    "ternary": Function(("any", "any", "bool"), lambda given, _: given[0] if given[2] else given[1]),
    "upper": _of_strings(1, upper),
    "lower": _of_strings(1, lower),
    "trim": _of_strings(1, trim),
    "trimSuffix": _of_strings(2, lambda suffix, whole: whole.removesuffix(suffix)),
    "trimPrefix": _of_strings(2, lambda prefix, whole: whole.removeprefix(prefix)),
    "replace": Function(("string", "string", "string"), _replace),
    "regexFind": Function(("string", "string"), _find),
    "regexFindString": Function(("string", "string", "int"), _find),
    "regexReplaceAll": Function(("string", "string", "string"), _replace_all),
    "contains": _of_strings(2, lambda part, whole: part in whole),
    "hasPrefix": _of_strings(2, lambda prefix, whole: whole.startswith(prefix)),
    "hasSuffix": _of_strings(2, lambda suffix, whole: whole.endswith(suffix)),
    "b64enc": _of_strings(1, base64.b64encode),
    "b64dec": _of_strings(1, _base64_decode),
    "getValue": _of_strings(2, _get_value),
}
# Functions of Go that are refused, and what to use instead.
REFUSED: Final = {
    "html": "values are plain text and need no escaping",
    "js": "values are plain text and need no escaping",
    "urlquery": "use replace or regexReplaceAll for the characters that must not appear",
    "call": "no value of a machine is a function",
}
FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType({**_OF_GO, **_OF_THE_REFERENCE})
