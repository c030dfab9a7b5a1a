"""Executes a parsed template: writes the output of each item."""

from collections.abc import Iterator, Mapping
from enum import Enum

from libs.gotemplate.bounds import ITEMS_PER_STEP, MAX_TEXT, BoundExceeded, Budget
from libs.gotemplate.errors import Places, TemplateError
from libs.gotemplate.evaluator import Evaluator
from libs.gotemplate.parser import ROOT
from libs.gotemplate.printing import sprint
from libs.gotemplate.quoting import quote
from libs.gotemplate.runes import encoded, valid
from libs.gotemplate.tree import Action, Break, Call, Continue, If, Item, Items, Range, Text, With
from libs.gotemplate.values import NO_VALUE, GoList, GoMap, Uint8, Value, size, truth


class _Leaving(Enum):
    """How the execution of items ends: normally, by `continue` or by `break`."""

    NOT = 0
    ITERATION = 1
    LOOP = 2


def execute(
    definitions: Mapping[str, Items],
    places: Places,
    data: Value,
    budget: Budget,
    actions: list[tuple[int, int]] | None = None,
) -> bytes:
    """Return the output. Raises TemplateError where Go fails, and for an exceeded bound.

    `actions` receives the start and the end, in bytes of the output, of what each action writes.
    """
    evaluator = Evaluator(places, data, budget)
    execution = _Execution(definitions, evaluator, actions)
    try:
        execution.items(data, definitions[ROOT])
    except BoundExceeded as error:
        evaluator.fail(str(error), "bound")
    except RecursionError as error:  # the caller's stack was nearly full
        raise TemplateError("bound", (1, 0), "is nested too deeply for the stack") from error
    return bytes(execution.output)


class _Execution:
    def __init__(
        self,
        definitions: Mapping[str, Items],
        evaluator: Evaluator,
        actions: list[tuple[int, int]] | None,
    ) -> None:
        self._definitions = definitions
        self._evaluator = evaluator
        self._actions = actions
        self.output = bytearray()

    def items(self, dot: Value, items: Items) -> _Leaving:
        """Write all items, up to a break or continue."""
        for item in items:
            self._evaluator.budget.spend()
            leaving = self._item(dot, item)
            if leaving is not _Leaving.NOT:
                return leaving
        return _Leaving.NOT

    def _write(self, text: bytes) -> None:
        if len(self.output) + len(text) > MAX_TEXT:
            raise BoundExceeded(f"the output is longer than MAX_TEXT = {MAX_TEXT} bytes")
        self._evaluator.budget.read(len(text))
        self.output += text

    def _item(self, dot: Value, item: Item) -> _Leaving:
        match item:
            case Text():
                self._write(item.value)
            case Action():
                self._action(dot, item)
            case If():
                return self._if(dot, item)
            case Range():
                return self._range(dot, item)
            case Call():
                self._template(dot, item)
            case Break():
                return _Leaving.LOOP
            case Continue():
                return _Leaving.ITERATION
        return _Leaving.NOT

    def _action(self, dot: Value, action: Action) -> None:
        value = self._evaluator.pipeline(dot, action.pipe)
        if action.pipe.declared:
            return
        self._evaluator.at = action
        start = len(self.output)
        if value is None:
            self._write(NO_VALUE)
        elif isinstance(value, bytes):
            self._write(value)
        else:
            self._evaluator.budget.read(size(value))
            self._write(sprint([value]))
        if self._actions is not None:
            self._actions.append((start, len(self.output)))

    def _if(self, dot: Value, block: If) -> _Leaving:
        """Execute the first branch whose value is true; for `with`, the value becomes dot."""
        scope = len(self._evaluator.variables)
        self._evaluator.deeper()
        for branch in block.branches:
            value = self._evaluator.pipeline(dot, branch.pipe)
            if truth(value):
                leaving = self.items(value if isinstance(block, With) else dot, branch.body)
                break
        else:
            leaving = self.items(dot, block.otherwise)
        self._leave(scope)
        return leaving

    def _leave(self, scope: int) -> None:
        self._evaluator.shallower()
        del self._evaluator.variables[scope:]

    def _range(self, dot: Value, block: Range) -> _Leaving:
        evaluator = self._evaluator
        scope = len(evaluator.variables)
        evaluator.at = block.pipe
        evaluator.deeper()
        value = evaluator.pipeline(dot, block.pipe)
        inner = len(evaluator.variables)
        empty, leaving = True, _Leaving.NOT
        for key, element in self._elements(value, len(block.pipe.declared)):
            empty = False
            evaluator.budget.spend()
            self._bind(block, key, element)
            left = self.items(element, block.body)
            del evaluator.variables[inner:]
            if left is _Leaving.LOOP:
                break
        if empty:
            leaving = self.items(dot, block.otherwise)
            if leaving is _Leaving.LOOP:  # as in Go: only `continue` affects the enclosing loop
                leaving = _Leaving.NOT
        self._leave(scope)
        return leaving

    def _elements(self, value: Value, declared: int) -> Iterator[tuple[Value, Value]]:
        """Yield key and element of each iteration; an int gives only elements."""
        evaluator = self._evaluator
        match value:
            case GoList():
                yield from enumerate(value.items)
            case GoMap():
                evaluator.budget.spend(len(value.entries) // ITEMS_PER_STEP)
                for key in sorted(value.entries):
                    yield key, value.entries[key]
            case None:
                return
            case bool() | float() | bytes():
                evaluator.fail(f"range can't iterate over {_shown(value)}")
            case int() | Uint8():
                if declared > 1:
                    evaluator.fail(f"can't use {_shown(value)} to iterate over more than one variable")
                yield from self._count(value)
            case _:
                evaluator.fail(f"range can't iterate over {_shown(value)}")

    def _count(self, value: int | Uint8) -> Iterator[tuple[Value, Value]]:
        if isinstance(value, Uint8):
            for number in range(value.value):
                yield None, Uint8(number)
        else:
            for number in range(value):
                yield None, number

    def _bind(self, block: Range, key: Value, element: Value) -> None:
        """Set the variables of an iteration; a single one is the element."""
        evaluator, names = self._evaluator, block.pipe.declared
        values = (element,) if len(names) == 1 else (key, element)
        for offset, (name, value) in enumerate(zip(names, values, strict=False)):
            if block.pipe.assigns:
                evaluator.set_variable(name, value)
            else:
                evaluator.variables[len(evaluator.variables) - len(names) + offset] = (name, value)

    def _template(self, dot: Value, call: Call) -> None:
        """Execute {{template}}; its pipeline becomes dot and $, and other variables are out of scope."""
        evaluator = self._evaluator
        evaluator.at = call
        if call.name not in self._definitions:
            evaluator.fail(f"template {quote(encoded(call.name)).decode()} not defined")
        value = evaluator.pipeline(dot, call.pipe)
        outside, evaluator.variables = evaluator.variables, [("$", value)]
        evaluator.deeper()
        self.items(value, self._definitions[call.name])
        evaluator.shallower()
        evaluator.variables = outside


def _shown(value: Value) -> str:
    return valid(sprint([value]))
