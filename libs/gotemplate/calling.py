"""Checks number and types of arguments before a function call, like Go."""

from collections.abc import Sequence

from libs.gotemplate.errors import FunctionError
from libs.gotemplate.signatures import Function, Parameter
from libs.gotemplate.tree import Bool, Nil, NumberConstant, Operand, String
from libs.gotemplate.values import Value, type_name

_EXPECTED = {"string": "string", "int": "integer", "bool": "bool"}


class Mismatch(FunctionError):
    """The function does not accept an argument: an error of the template, not of the function."""


def check_count(name: str, function: Function, written: int, piped: bool) -> None:
    """Raise Mismatch for a wrong number of arguments."""
    fixed, given = len(function.parameters), written + piped
    if function.rest is not None:
        if given < fixed:
            raise Mismatch(f"wrong number of args for {name}: want at least {fixed} got {written}")
    elif given != fixed:
        raise Mismatch(f"wrong number of args for {name}: want {fixed} got {given}")


def parameters(function: Function, count: int) -> Sequence[Parameter]:
    """Return the parameter types for `count` arguments."""
    fixed = function.parameters
    return fixed if function.rest is None else (*fixed, *(function.rest,) * (count - len(fixed)))


def assignable(value: Value, parameter: Parameter) -> Value:
    """Return the value if a parameter of this type accepts it. Raises Mismatch."""
    if parameter == "any":
        return value
    if value is None:
        raise Mismatch(f"invalid value; expected {parameter}")
    if type_name(value) != parameter:
        raise Mismatch(f"wrong type for value; expected {parameter}; got {type_name(value)}")
    return value


def constant(node: Operand, parameter: Parameter) -> Value:
    """Return a constant as an argument of this type. Raises Mismatch.

    A float constant such as 1.0 is valid for an integer parameter.
    """
    if isinstance(node, Nil):
        if parameter != "any":
            raise Mismatch(f"cannot assign nil to {parameter}")
        return None
    if parameter == "any":
        return ideal(node)
    if parameter == "string" and isinstance(node, String):
        return node.value
    if parameter == "bool" and isinstance(node, Bool):
        return node.value
    if parameter == "int" and isinstance(node, NumberConstant) and node.number.integer is not None:
        return _in_range(node)
    raise Mismatch(f"expected {_EXPECTED[parameter]}; found {node}")


def ideal(node: Operand) -> Value:
    """Return the value of an untyped constant; its syntax decides its type."""
    if isinstance(node, Bool | String):
        return node.value
    assert isinstance(node, NumberConstant)
    return node.number.floating if node.number.looks_float else _in_range(node)


def _in_range(node: NumberConstant) -> int:
    integer = node.number.integer
    assert integer is not None
    if integer >= 2**63:
        raise Mismatch(f"{node.text} overflows int")
    return integer
