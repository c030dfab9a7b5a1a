"""Executes a parsed template: writes the output of each item."""

from collections.abc import Iterator, Mapping

from libs.gotemplate.bounds import ITEMS_PER_STEP, MAX_TEXT, BoundExceeded, Budget
from libs.gotemplate.errors import Places, TemplateError
from libs.gotemplate.evaluator import Evaluator, to_text
from libs.gotemplate.parser import ROOT
from libs.gotemplate.quoting import quote_text
from libs.gotemplate.runes import valid
from libs.gotemplate.tree import Action, Block, Call, Item, Items, Leave, Pipe, Text
from libs.gotemplate.values import Value, size


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
    execution = _Execution(definitions, evaluator, [] if actions is None else actions)
    try:
        execution.items(data, definitions[ROOT])
    except BoundExceeded as error:
        evaluator.fail(str(error), kind="bound")
    except RecursionError as error:  # the caller's stack was nearly full
        raise TemplateError("bound", (1, 0), "is nested too deeply for the stack") from error
    return bytes(execution.output)


class _Execution:
    """Its methods return "break" or "continue" if the items end by it, otherwise ""."""

    def __init__(
        self, definitions: Mapping[str, Items], evaluator: Evaluator, actions: list[tuple[int, int]]
    ) -> None:
        self._definitions = definitions
        self._evaluator = evaluator
        self._actions = actions
        self.output = bytearray()

    def items(self, dot: Value, items: Items) -> str:
        """Write all items, up to a break or continue."""
        for item in items:
            self._evaluator.budget.spend()
            if leaving := self._item(dot, item):
                return leaving
        return ""

    def _item(self, dot: Value, item: Item) -> str:
        match item:
            case Text():
                self._write(item.value)
            case Action():
                self._action(dot, item)
            case Block():
                return self._block(dot, item)
            case Call():
                self._call(dot, item)
            case Leave():
                return item.keyword
        return ""

    def _write(self, text: bytes) -> None:
        if len(self.output) + len(text) > MAX_TEXT:
            raise BoundExceeded(f"the output is longer than MAX_TEXT = {MAX_TEXT} bytes")
        self._evaluator.budget.read(len(text))
        self.output += text

    def _action(self, dot: Value, action: Action) -> None:
        value = self._evaluator.pipeline(dot, action.pipe)
        if action.pipe.declared:
            return
        start = len(self.output)
        self._evaluator.budget.read(size(value))
        self._write(to_text(value))
        self._actions.append((start, len(self.output)))

    def _block(self, dot: Value, block: Block) -> str:
        evaluator = self._evaluator
        scope = len(evaluator.variables)
        evaluator.deeper()
        leaving = self._range(dot, block) if block.keyword == "range" else self._if(dot, block)
        evaluator.shallower()
        del evaluator.variables[scope:]
        return leaving

    def _if(self, dot: Value, block: Block) -> str:
        """Execute the first branch whose value is true; for `with`, the value becomes dot."""
        for branch in block.branches:
            value = self._evaluator.pipeline(dot, branch.pipe)
            if value:
                return self.items(value if block.keyword == "with" else dot, branch.body)
        return self.items(dot, block.otherwise)

    def _range(self, dot: Value, block: Block) -> str:
        evaluator, (branch,) = self._evaluator, block.branches
        value = evaluator.pipeline(dot, branch.pipe)
        inner = len(evaluator.variables)
        is_empty = True
        for key, element in self._elements(value, branch.pipe):
            is_empty = False
            evaluator.budget.spend()
            self._bind(branch.pipe, key, element)
            leaving = self.items(element, branch.body)
            del evaluator.variables[inner:]
            if leaving == "break":
                break
        # as in Go: a `break` in `else` does not affect the enclosing loop, but a `continue` does
        return self.items(dot, block.otherwise).replace("break", "") if is_empty else ""

    def _elements(self, value: Value, pipe: Pipe) -> Iterator[tuple[Value, Value]]:
        """Yield key and element of each iteration; an int gives only elements."""
        evaluator = self._evaluator
        if isinstance(value, dict):
            evaluator.budget.spend(len(value) // ITEMS_PER_STEP)
            for key in sorted(value):
                yield key, value[key]
        elif isinstance(value, int) and not isinstance(value, bool):
            if len(pipe.declared) > 1:
                evaluator.fail(f"can't use {value} to iterate over more than one variable", pipe)
            for number in range(value):
                yield None, number
        elif value is not None:
            evaluator.fail(f"range can't iterate over {valid(to_text(value))}", pipe)

    def _bind(self, pipe: Pipe, key: Value, element: Value) -> None:
        """Set the variables of an iteration; a single one is the element."""
        variables, names = self._evaluator.variables, pipe.declared
        values = (element,) if len(names) == 1 else (key, element)
        for offset, (name, value) in enumerate(zip(names, values, strict=False)):
            if pipe.assigns:
                self._evaluator.set_variable(name, value)
            else:
                variables[len(variables) - len(names) + offset] = (name, value)

    def _call(self, dot: Value, call: Call) -> None:
        """Execute {{template}}; its pipeline becomes dot and $, and other variables are out of scope."""
        evaluator = self._evaluator
        if call.name not in self._definitions:
            evaluator.fail(f"template {quote_text(call.name)} not defined", call)
        value = None if call.pipe is None else evaluator.pipeline(dot, call.pipe)
        outside, evaluator.variables = evaluator.variables, [("$", value)]
        evaluator.deeper()
        self.items(value, self._definitions[call.name])
        evaluator.shallower()
        evaluator.variables = outside
