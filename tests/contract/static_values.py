"""Strings that an expression can have, read from the source: for tables that no single constant holds."""

import ast
import functools
from collections.abc import Iterator
from typing import Final

from tests.architecture.sources import Source

_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class ModuleText:
    """One module, for questions about the expressions in it."""

    def __init__(self, source: Source) -> None:
        self.calls = [node for node in source.nodes if isinstance(node, ast.Call)]
        self._tree = source.tree
        self._functions = [node for node in source.nodes if isinstance(node, _DEFINITIONS)]

    @functools.cached_property
    def _inside(self) -> dict[int, ast.FunctionDef | ast.AsyncFunctionDef]:
        """The function of each node inside one, by the node's id."""
        return {
            id(node): function
            for function in self._functions  # outer ones first: the innermost wins
            for node in ast.walk(function)
            if node is not function
        }

    def strings(self, expression: ast.expr, seen: frozenset[str] = frozenset()) -> Iterator[str]:
        """The string constants that the expression can have; computed values are left out."""
        match expression:
            case ast.Constant(value=str(text)):
                yield text
            case ast.IfExp(body=one, orelse=other):
                yield from self.strings(one, seen)
                yield from self.strings(other, seen)
            case ast.Name(id=name) if name not in seen:
                for each in self._values_of(expression):
                    yield from self.strings(each, seen | {name})

    def keys(self, expression: ast.expr, seen: frozenset[str] = frozenset()) -> Iterator[str]:
        """The keys that a dictionary can have."""
        match expression:
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    yield from self.keys(value, seen) if key is None else self.strings(key)
            case ast.BinOp(left=left, right=right):
                yield from self.keys(left, seen)
                yield from self.keys(right, seen)
            case ast.IfExp(body=one, orelse=other):
                yield from self.keys(one, seen)
                yield from self.keys(other, seen)
            case ast.Name(id=name) if name not in seen:
                yield from self._keys_set_later(expression)
                for each in self._values_of(expression):
                    yield from self.keys(each, seen | {name})
            case ast.Call(func=function) if called(function) not in seen:
                for each in self._returned_by(called(function)):
                    yield from self.keys(each, seen | {called(function)})

    def _values_of(self, name: ast.Name) -> Iterator[ast.expr]:
        """What is assigned to the name in its function, passed for it, or assigned in the module."""
        function = self._inside.get(id(name))
        for scope in (function, self._tree):
            for node in ast.walk(scope) if scope is function and scope else getattr(scope, "body", ()):
                match node:
                    case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name.id:
                        yield value
                    case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if (
                        found == name.id
                    ):
                        yield value
                    case ast.For(target=target, iter=iterated):
                        yield from _of_loop(name.id, target, iterated)
                    case ast.comprehension(target=target, iter=iterated):
                        yield from _of_loop(name.id, target, iterated)
        if function is not None:
            yield from self._passed(function, name.id)

    def _passed(self, function: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str) -> Iterator[ast.expr]:
        positional = [each.arg for each in function.args.args if each.arg != "self"]
        for call in self.calls:
            if called(call.func) != function.name:
                continue
            yield from (keyword.value for keyword in call.keywords if keyword.arg == parameter)
            if parameter in positional and positional.index(parameter) < len(call.args):
                yield call.args[positional.index(parameter)]

    def _keys_set_later(self, name: ast.Name) -> Iterator[str]:
        for node in ast.walk(self._inside.get(id(name), self._tree)):
            match node:
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=found), slice=key)]) if (
                    found == name.id
                ):
                    yield from self.strings(key)

    def _returned_by(self, name: str) -> Iterator[ast.expr]:
        for function in self._functions:
            if function.name == name:
                for node in ast.walk(function):
                    if isinstance(node, ast.Return) and node.value is not None:
                        yield node.value


def called(function: ast.expr) -> str:
    """The last part of the name that is called."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _of_loop(name: str, target: ast.expr, iterated: ast.expr) -> Iterator[ast.expr]:
    match target, iterated:
        case ast.Name(id=found), ast.Tuple(elts=values) | ast.List(elts=values) if found == name:
            yield from values
        case ast.Tuple(elts=targets), ast.Tuple(elts=rows):
            for at, each in enumerate(targets):
                if isinstance(each, ast.Name) and each.id == name:
                    yield from (row.elts[at] for row in rows if isinstance(row, ast.Tuple))
