"""The functions of templates: those of text/template and of the reference controller, and our own."""

import base64
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from libs.gotemplate import base64_text, escaping, regular_expressions
from libs.gotemplate.bounds import Budget, fits
from libs.gotemplate.comparison import equal, less, less_or_equal
from libs.gotemplate.indexing import cut, index, length
from libs.gotemplate.printf import sprintf
from libs.gotemplate.printing import sprint, sprintln
from libs.gotemplate.runes import characters, lower, raw, trim, upper
from libs.gotemplate.signatures import Function, of_any, of_strings, text
from libs.gotemplate.values import NO_VALUE, Value, is_zero, truth


def _default(fallback: Value, given: Sequence[Value]) -> Value:
    return fallback if not given or is_zero(given[0]) else given[0]


def _coalesce(given: Sequence[Value]) -> Value:
    return next((value for value in given if not is_zero(value)), None)


def _replace(given: Sequence[Value], budget: Budget) -> Value:
    old, new, whole = map(text, given)
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


def _printable(given: Sequence[Value]) -> bytes:
    """Return the text of the arguments that html, js and urlquery escape."""
    return sprint([NO_VALUE if value is None else value for value in given])


def _greater(left: Value, right: Value) -> Value:
    return not less_or_equal(left, right)


def _greater_or_equal(left: Value, right: Value) -> Value:
    return not less(left, right)


def _find(given: Sequence[Value], budget: Budget) -> Value:
    pattern, whole, group = given if len(given) == 3 else (*given, 0)
    assert isinstance(group, int)
    return regular_expressions.find(text(pattern), text(whole), group, budget)


def _replace_all(given: Sequence[Value], budget: Budget) -> Value:
    pattern, whole, replacement = map(text, given)
    return regular_expressions.replace_all(pattern, whole, replacement, budget)


_OF_GO: Final = {
    # the evaluator implements `and`, `or` and `call`; these entries define their parameters
    "and": of_any(1, lambda _, __: None, rest=True),
    "or": of_any(1, lambda _, __: None, rest=True),
    "call": of_any(1, lambda _, __: None, rest=True),
    "not": of_any(1, lambda value: not truth(value)),
    "eq": of_any(1, lambda first, others: equal([first, *others]), rest=True),
    "ne": of_any(2, lambda left, right: not equal([left, right])),
    "lt": of_any(2, less),
    "le": of_any(2, less_or_equal),
    "gt": of_any(2, _greater),
    "ge": of_any(2, _greater_or_equal),
    "len": of_any(1, length),
    "index": of_any(1, index, rest=True),
    "slice": of_any(1, cut, rest=True),
    "print": of_any(0, sprint, rest=True),
    "println": of_any(0, sprintln, rest=True),
    "printf": Function(("string",), lambda given, _: sprintf(text(given[0]), given[1:]), "any"),
    "html": of_any(0, lambda given: escaping.html(_printable(given)), rest=True),
    "js": of_any(0, lambda given: escaping.js(_printable(given)), rest=True),
    "urlquery": of_any(0, lambda given: escaping.urlquery(_printable(given)), rest=True),
}
_OF_THE_REFERENCE: Final = {
    "default": of_any(1, _default, rest=True),
    "empty": of_any(1, is_zero),
    "coalesce": of_any(0, _coalesce, rest=True),
    "ternary": Function(("any", "any", "bool"), lambda given, _: given[0] if given[2] else given[1]),
    "upper": of_strings(1, upper),
    "lower": of_strings(1, lower),
    "trim": of_strings(1, trim),
    "trimSuffix": of_strings(2, lambda suffix, whole: whole.removesuffix(suffix)),
    "trimPrefix": of_strings(2, lambda prefix, whole: whole.removeprefix(prefix)),
    "replace": Function(("string", "string", "string"), _replace),
    "regexFind": Function(("string", "string"), _find),
    "regexFindString": Function(("string", "string", "int"), _find),
    "regexReplaceAll": Function(("string", "string", "string"), _replace_all),
    "contains": of_strings(2, lambda part, whole: part in whole),
    "hasPrefix": of_strings(2, lambda prefix, whole: whole.startswith(prefix)),
    "hasSuffix": of_strings(2, lambda suffix, whole: whole.endswith(suffix)),
    "b64enc": of_strings(1, base64.b64encode),
    "b64dec": of_strings(1, base64_text.decode),
    "getValue": of_strings(2, _get_value),
}
_OURS: Final[Mapping[str, Function]] = {}
OWN_FUNCTIONS: Final = frozenset(_OURS)  # which the reference does not have; `config check` reports their use
FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType({**_OF_GO, **_OF_THE_REFERENCE, **_OURS})
