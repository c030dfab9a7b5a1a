"""Finds the fields that a template uses, so that a configuration can be checked."""

from collections.abc import Mapping

from libs.gotemplate.tree import Action, Block, Call, Dot, Items, Operand, Path, Pipe, Variable


def fields_read(definitions: Mapping[str, Items], root: str) -> frozenset[str]:
    """Return the first name of each `.X` and `$.X` where dot and $ are the template's data.

    Fields of variables or of a changed dot are unknown before execution and are not included.
    """
    reader = _Reader(definitions)
    reader.items(definitions[root], dot=True, dollar=True)
    return frozenset(reader.names)


class _Reader:
    def __init__(self, definitions: Mapping[str, Items]) -> None:
        self._definitions = definitions
        self._called: set[tuple[str, bool]] = set()
        self.names: set[str] = set()

    def items(self, items: Items, *, dot: bool, dollar: bool) -> None:
        """Collect the names in the items; `dot` and `dollar`: whether dot and $ are the data here."""
        for item in items:
            match item:
                case Action():
                    self._pipe(item.pipe, dot, dollar)
                case Block():
                    self._block(item, dot, dollar)
                case Call():
                    self._call(item, dot, dollar)

    def _block(self, block: Block, dot: bool, dollar: bool) -> None:
        for branch in block.branches:
            self._pipe(branch.pipe, dot, dollar)
            is_data = block.keyword == "if" and dot
            if block.keyword == "with":
                is_data = _is_data(branch.pipe, dot, dollar)
            self.items(branch.body, dot=is_data, dollar=dollar)
        self.items(block.otherwise, dot=dot, dollar=dollar)

    def _call(self, call: Call, dot: bool, dollar: bool) -> None:
        data = False
        if call.pipe is not None:
            self._pipe(call.pipe, dot, dollar)
            data = _is_data(call.pipe, dot, dollar)
        if call.name in self._definitions and (call.name, data) not in self._called:
            self._called.add((call.name, data))
            self.items(self._definitions[call.name], dot=data, dollar=data)

    def _pipe(self, pipe: Pipe, dot: bool, dollar: bool) -> None:
        for command in pipe.commands:
            for operand in command.arguments:
                self._operand(operand, dot, dollar)

    def _operand(self, operand: Operand, dot: bool, dollar: bool) -> None:
        if isinstance(operand, Path):
            if _is_data(operand.base, dot, dollar):
                self.names.add(operand.names[0])
            operand = operand.base
        if isinstance(operand, Pipe):
            self._pipe(operand, dot, dollar)


def _is_data(operand: Operand, dot: bool, dollar: bool) -> bool:
    """Return whether the operand is `.` or `$`, also in parentheses, and refers to the data."""
    while isinstance(operand, Pipe) and len(operand.commands) == len(operand.commands[0].arguments) == 1:
        operand = operand.commands[0].arguments[0]
    return (dot and isinstance(operand, Dot)) or (
        dollar and isinstance(operand, Variable) and operand.name == "$"
    )
