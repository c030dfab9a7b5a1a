"""Finds the fields and functions that a template uses, so that a configuration can be checked."""

from collections.abc import Mapping

import msgspec

from libs.gotemplate.tree import (
    Action,
    Call,
    Chain,
    Dot,
    Field,
    Identifier,
    If,
    Item,
    Items,
    Operand,
    Pipe,
    Range,
    Variable,
    With,
)


def fields_read(definitions: Mapping[str, Items], root: str) -> frozenset[str]:
    """Return the first name of each `.X` and `$.X` where dot and $ are the template's data.

    Fields of variables or of a changed dot are unknown before execution and are not included.
    """
    reader = _Reader(definitions)
    reader.items(definitions[root], dot=True, dollar=True)
    return frozenset(reader.names)


def functions_named(definitions: Mapping[str, Items]) -> frozenset[str]:
    """Return the functions that all definitions name, called or not: Go parses every definition."""
    names: set[str] = set()
    remaining: list[object] = [*definitions.values()]
    while remaining:
        match remaining.pop():
            case Identifier(name=name):
                names.add(name)
            case tuple() as parts:
                remaining.extend(parts)
            case msgspec.Struct() as node:
                remaining.extend(getattr(node, field) for field in node.__struct_fields__)
    return frozenset(names)


class _Reader:
    def __init__(self, definitions: Mapping[str, Items]) -> None:
        self._definitions = definitions
        self._called: set[tuple[str, bool]] = set()
        self.names: set[str] = set()

    def items(self, items: Items, *, dot: bool, dollar: bool) -> None:
        """Collect the names in the items; `dot` and `dollar`: whether dot and $ are the data here."""
        for item in items:
            self._item(item, dot, dollar)

    def _item(self, item: Item, dot: bool, dollar: bool) -> None:
        match item:
            case Action():
                self._pipe(item.pipe, dot, dollar)
            case If():
                for branch in item.branches:
                    self._pipe(branch.pipe, dot, dollar)
                    changed = isinstance(item, With) and not _is_data(branch.pipe, dot, dollar)
                    self.items(branch.body, dot=dot and not changed, dollar=dollar)
                self.items(item.otherwise, dot=dot, dollar=dollar)
            case Range():
                self._pipe(item.pipe, dot, dollar)
                self.items(item.body, dot=False, dollar=dollar)
                self.items(item.otherwise, dot=dot, dollar=dollar)
            case Call():
                self._call(item, dot, dollar)

    def _call(self, call: Call, dot: bool, dollar: bool) -> None:
        if call.pipe is not None:
            self._pipe(call.pipe, dot, dollar)
        data = call.pipe is not None and _is_data(call.pipe, dot, dollar)
        if call.name in self._definitions and (call.name, data) not in self._called:
            self._called.add((call.name, data))
            self.items(self._definitions[call.name], dot=data, dollar=data)

    def _pipe(self, pipe: Pipe, dot: bool, dollar: bool) -> None:
        for command in pipe.commands:
            for operand in command.arguments:
                self._operand(operand, dot, dollar)

    def _operand(self, operand: Operand, dot: bool, dollar: bool) -> None:
        match operand:
            case Field() if dot:
                self.names.add(operand.names[0])
            case Variable() if dollar and operand.names[0] == "$" and len(operand.names) > 1:
                self.names.add(operand.names[1])
            case Chain():
                inner = operand.node
                if isinstance(inner, Pipe) and _is_data(inner, dot, dollar):
                    self.names.add(operand.names[0])
                self._operand(inner, dot, dollar)
            case Pipe():
                self._pipe(operand, dot, dollar)


def _is_data(pipe: Pipe, dot: bool, dollar: bool) -> bool:
    """Return whether the pipeline is `.` or `$` and refers to the data."""
    if len(pipe.commands) != 1 or len(pipe.commands[0].arguments) != 1:
        return False
    operand = pipe.commands[0].arguments[0]
    if isinstance(operand, Dot):
        return dot
    return dollar and isinstance(operand, Variable) and operand.names == ("$",)
