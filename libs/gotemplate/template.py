"""Parses templates when the configuration is loaded, and renders them for each machine."""

from collections.abc import Mapping

import msgspec

from libs.gotemplate.bounds import MAX_SOURCE, Budget
from libs.gotemplate.errors import Places, TemplateError
from libs.gotemplate.executor import execute
from libs.gotemplate.parser import ROOT, parse_source
from libs.gotemplate.runes import encoded, valid
from libs.gotemplate.tree import Action, Block, Call, Dot, Items, Operand, Path, Pipe, Variable
from libs.gotemplate.values import Record


class Template(msgspec.Struct, frozen=True):
    """A parsed template."""

    source: str
    # The first name of each `.X` and `$.X` where dot and $ are the template's data. Fields of variables or of
    # a changed dot are unknown before rendering and are not included.
    fields: frozenset[str]
    definitions: Mapping[str, Items]  # the template itself and those that it defines
    places: Places


def parse(source: str) -> Template:
    """Parse a template.

    Raises TemplateError of kind "parse" for bad syntax or an unknown name, and "bound" for its size. `render`
    raises the errors that Go reports only at execution: a wrong number of arguments, an unknown field.
    """
    size = len(encoded(source))
    if size > MAX_SOURCE:
        raise TemplateError("bound", (1, 0), f"has {size} bytes, more than MAX_SOURCE = {MAX_SOURCE}")
    places = Places(source)
    definitions = parse_source(source, places)
    reader = _Reader(definitions)
    reader.items(definitions[ROOT], dot=True, dollar=True)
    return Template(source, frozenset(reader.names), definitions, places)


def render(
    template: Template,
    data: Record,
    budget: Budget | None = None,
    actions: list[tuple[int, int]] | None = None,
) -> str:
    """Render the template as plain text without escaping. Raises TemplateError of kind "exec" or "bound".

    Invalid UTF-8 becomes U+FFFD. The default budget is MAX_STEPS; afterwards `budget.left` is the rest.
    `actions` receives the start and the end of what each action writes, in bytes before that replacement.
    """
    return valid(execute(template.definitions, template.places, data, budget or Budget(), actions))


class _Reader:
    """Finds the fields that a template reads."""

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
