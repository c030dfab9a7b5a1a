"""A template function: which arguments it takes, in Go's types, and how it is run."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from libs.gotemplate.bounds import Budget
from libs.gotemplate.values import Value

# "any" is interface{} or reflect.Value: takes everything, nil included.
Parameter = Literal["string", "int", "bool", "any"]


class Function(msgspec.Struct, frozen=True):
    """`rest` is the type of further arguments; None where their number is fixed."""

    parameters: tuple[Parameter, ...]
    run: Callable[[Sequence[Value], Budget], Value]
    rest: Parameter | None = None


def of_strings(count: int, run: Callable[..., Value]) -> Function:
    """A function of so many strings that does nothing costly."""
    strings: Parameter = "string"
    return Function((strings,) * count, lambda given, _: run(*given))


def of_any(count: int, run: Callable[..., Value], *, rest: bool = False) -> Function:
    """A function of values of any type; with `rest`, further ones come as one sequence."""

    def call(given: Sequence[Value], _: Budget) -> Value:
        return run(*given[:count], given[count:]) if rest else run(*given)

    anything: Parameter = "any"
    return Function((anything,) * count, call, "any" if rest else None)


def text(value: Value) -> bytes:
    """An argument that its parameter's type has made sure is a string."""
    assert isinstance(value, bytes)
    return value
