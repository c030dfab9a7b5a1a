"""Describes template functions: their parameters in Go's types, and the function to run."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from libs.gotemplate.bounds import Budget
from libs.gotemplate.values import Value

# "any" is interface{} or reflect.Value: it accepts every value, including nil.
Parameter = Literal["string", "int", "bool", "any"]


class Function(msgspec.Struct, frozen=True):
    """A template function; `rest` is the type of variadic arguments, None if there are none."""

    parameters: tuple[Parameter, ...]
    run: Callable[[Sequence[Value], Budget], Value]
    rest: Parameter | None = None


def of_strings(count: int, run: Callable[..., Value]) -> Function:
    """Return a cheap function with `count` string parameters."""
    strings: Parameter = "string"
    return Function((strings,) * count, lambda given, _: run(*given))


def of_any(count: int, run: Callable[..., Value], *, rest: bool = False) -> Function:
    """Return a function with `count` parameters of any type; `rest` passes further ones as one sequence."""

    def call(given: Sequence[Value], _: Budget) -> Value:
        return run(*given[:count], given[count:]) if rest else run(*given)

    anything: Parameter = "any"
    return Function((anything,) * count, call, "any" if rest else None)


def text(value: Value) -> bytes:
    """Narrow an argument whose parameter type is string."""
    assert isinstance(value, bytes)
    return value
