"""The functions of templates: those of text/template and of the reference controller."""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from libs.gotemplate.bounds import Budget, fits
from libs.gotemplate.errors import FunctionError
from libs.gotemplate.printf import sprint, sprintf, sprintln
from libs.gotemplate.regular_expressions import find, replace_all
from libs.gotemplate.runes import characters, lower, raw, trim, upper
from libs.gotemplate.values import Record, Value, is_zero, type_name

# "any" is interface{} or reflect.Value: it accepts every value, including nil.
Parameter = Literal["string", "int", "bool", "any"]


class Function(msgspec.Struct, frozen=True):
    """A template function; `rest` is the type of variadic arguments, None if there are none."""

    parameters: tuple[Parameter, ...]
    run: Callable[..., Value]  # gets the arguments; variadic ones as one sequence; then the budget
    rest: Parameter | None = None
    takes_budget: bool = False  # its work grows with more than the size of its arguments and result

    def parameters_for(self, count: int) -> Sequence[Parameter]:
        """Return the parameter types for `count` arguments."""
        rest = () if self.rest is None else (self.rest,) * (count - len(self.parameters))
        return (*self.parameters, *rest)

    def call(self, given: Sequence[Value], budget: Budget) -> Value:
        """Return the result for arguments of these types. Raises FunctionError and BoundExceeded."""
        count = len(self.parameters)
        rest = () if self.rest is None else (given[count:],)
        return self.run(*given[:count], *rest, *((budget,) if self.takes_budget else ()))


_ANY: Final[tuple[Parameter, ...]] = ("any",)
_STRING: Final[tuple[Parameter, ...]] = ("string",)


def _equal(first: Value, others: Sequence[Value]) -> bool:
    """Implement eq: whether the first argument equals any of the others. Go's basic kinds never mix."""
    if not others:
        raise FunctionError("missing argument for comparison")
    return any(_is_same(first, other) for other in others)


def _is_less(left: Any, right: Any) -> bool:
    for value in (left, right):
        if not isinstance(value, int | float | bytes):
            raise FunctionError("invalid type for comparison")
    _check_types(left, right)
    if isinstance(left, bool):
        raise FunctionError("invalid type for comparison")
    return bool(left < right)


def _is_less_or_equal(left: Value, right: Value) -> bool:
    return _is_less(left, right) or left == right


def _is_same(left: Value, right: Value) -> bool:
    if left is None or right is None:
        return _is_nil(left) and _is_nil(right)
    _check_types(left, right)
    if isinstance(left, dict | Record):
        raise FunctionError(f"non-comparable type {type_name(left)}: use empty or len")
    return left == right


def _is_nil(value: Value) -> bool:
    return value is None or (isinstance(value, dict) and not value)


def _check_types(left: Value, right: Value) -> None:
    if type(left) is not type(right):
        types = f"{type_name(left)} and {type_name(right)}"
        raise FunctionError(f"incompatible types for comparison: {types}")


def _length(value: Value) -> int:
    """Return the number of bytes or entries."""
    if isinstance(value, bytes | dict):
        return len(value)
    raise FunctionError("len of nil" if value is None else f"len of type {type_name(value)}")


def _index(item: Value, keys: Sequence[Value]) -> Value:
    """Return an entry of a map, "" if it is missing."""
    if item is None:
        raise FunctionError("index of untyped nil")
    for key in keys:
        if isinstance(item, bytes):
            raise FunctionError("index of a string is not supported: use slice, such as slice .Zone 0 1")
        if not isinstance(item, dict):
            raise FunctionError(f"can't index item of type {type_name(item)}")
        if key is None:
            raise FunctionError("value is nil; should be of type string")
        if not isinstance(key, bytes):
            raise FunctionError(f"value has type {type_name(key)}; should be string")
        item = item.get(key, b"")
    return item


def _slice(item: Value, indexes: Sequence[Value]) -> bytes:
    """Return x[1:2] for `slice x 1 2`, by bytes."""
    if item is None:
        raise FunctionError("slice of untyped nil")
    if not isinstance(item, bytes):
        raise FunctionError(f"can't slice item of type {type_name(item)}")
    if len(indexes) > 2:
        raise FunctionError("cannot 3-index slice a string")
    bounds = [0, len(item)]
    bounds[: len(indexes)] = [_position(key, len(item)) for key in indexes]
    low, high = bounds
    if low > high:
        raise FunctionError(f"invalid slice index: {low} > {high}")
    return item[low:high]


def _position(key: Value, limit: int) -> int:
    if isinstance(key, bool) or not isinstance(key, int):
        shown = "nil" if key is None else f"type {type_name(key)}"
        raise FunctionError(f"cannot index slice/array with {shown}")
    if not 0 <= key <= limit:
        raise FunctionError(f"index out of range: {key}")
    return key


def _default(fallback: Value, given: Sequence[Value]) -> Value:
    return fallback if not given or is_zero(given[0]) else given[0]


def _coalesce(given: Sequence[Value]) -> Value:
    return next((value for value in given if not is_zero(value)), None)


def _replace(old: bytes, new: bytes, whole: bytes, budget: Budget) -> Value:
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


_OF_GO: Final = {
    # the evaluator implements `and` and `or`; these entries define their parameters
    "and": Function(_ANY, lambda _, __: None, "any"),
    "or": Function(_ANY, lambda _, __: None, "any"),
    "not": Function(_ANY, lambda value: not value),
    "eq": Function(_ANY, _equal, "any"),
    "ne": Function(_ANY * 2, lambda left, right: not _equal(left, [right])),
    "lt": Function(_ANY * 2, _is_less),
    "le": Function(_ANY * 2, _is_less_or_equal),
    "gt": Function(_ANY * 2, lambda left, right: not _is_less_or_equal(left, right)),
    "ge": Function(_ANY * 2, lambda left, right: not _is_less(left, right)),
    "len": Function(_ANY, _length),
    "index": Function(_ANY, _index, "any"),
    "slice": Function(_ANY, _slice, "any"),
    "print": Function((), sprint, "any"),
    "println": Function((), sprintln, "any"),
    "printf": Function(_STRING, sprintf, "any"),
}
_OF_THE_REFERENCE: Final = {
    "default": Function(_ANY, _default, "any"),
    "empty": Function(_ANY, is_zero),
    "coalesce": Function((), _coalesce, "any"),
    "ternary": Function(("any", "any", "bool"), lambda yes, no, condition: yes if condition else no),
    "upper": Function(_STRING, upper),
    "lower": Function(_STRING, lower),
    "trim": Function(_STRING, trim),
    "trimSuffix": Function(_STRING * 2, lambda suffix, whole: whole.removesuffix(suffix)),
    "trimPrefix": Function(_STRING * 2, lambda prefix, whole: whole.removeprefix(prefix)),
    "replace": Function(_STRING * 3, _replace, takes_budget=True),
    "regexFind": Function(
        _STRING * 2, lambda pattern, text, of: find(pattern, text, 0, of), takes_budget=True
    ),
    "regexFindString": Function(("string", "string", "int"), find, takes_budget=True),
    "regexReplaceAll": Function(_STRING * 3, replace_all, takes_budget=True),
    "contains": Function(_STRING * 2, lambda part, whole: part in whole),
    "hasPrefix": Function(_STRING * 2, lambda prefix, whole: whole.startswith(prefix)),
    "hasSuffix": Function(_STRING * 2, lambda suffix, whole: whole.endswith(suffix)),
    "b64enc": Function(_STRING, base64.b64encode),
    "b64dec": Function(_STRING, _base64_decode),
    "getValue": Function(_STRING * 2, _get_value),
}
# Functions of Go that are refused, and what to use instead.
REFUSED: Final = {
    "html": "values are plain text and need no escaping",
    "js": "values are plain text and need no escaping",
    "urlquery": "use replace or regexReplaceAll for the characters that must not appear",
    "call": "no value of a machine is a function",
}
FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType({**_OF_GO, **_OF_THE_REFERENCE})
