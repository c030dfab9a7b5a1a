"""Evaluates pipelines: variables, fields, calls. Errors name the node that fails."""

from collections.abc import Sequence
from typing import Final, NoReturn

from libs.gotemplate.bounds import MAX_RUN_DEPTH, BoundExceeded, Budget, fits
from libs.gotemplate.errors import ErrorKind, FunctionError, Places, TemplateError
from libs.gotemplate.functions import FUNCTIONS, Function, Parameter
from libs.gotemplate.printf import sprint
from libs.gotemplate.runes import encoded
from libs.gotemplate.tree import Command, Constant, Dot, Identifier, Node, Operand, Path, Pipe, Variable
from libs.gotemplate.values import NO_VALUE, Record, Value, size, type_name

_EXPECTED: Final = {"string": "string", "int": "integer", "bool": "bool"}


class Evaluator:
    """The state of one rendering: variables, the place for errors, and the remaining budget."""

    def __init__(self, places: Places, data: Value, budget: Budget) -> None:
        self._places = places
        self.budget: Final = budget
        self.variables: list[tuple[str, Value]] = [("$", data)]
        self.at: Node = Dot(0, 0)  # the node for errors
        self._depth = 0

    def fail(self, reason: str, node: Node | None = None, kind: ErrorKind = "exec") -> NoReturn:
        """Raise TemplateError at the node, or at the node that was evaluated last."""
        node = node or self.at
        raise TemplateError(
            kind, self._places.place(node.start), reason, self._places.text(node.start, node.end)
        )

    def deeper(self) -> None:
        """Enter a block, a parenthesis or a template; the caller leaves it with `shallower`."""
        self._depth += 1
        if self._depth > MAX_RUN_DEPTH:
            raise BoundExceeded(f"is nested deeper than MAX_RUN_DEPTH = {MAX_RUN_DEPTH}")

    def shallower(self) -> None:
        """Leave a block, a parenthesis or a template."""
        self._depth -= 1

    def set_variable(self, name: str, value: Value) -> None:
        """Assign to the innermost variable of this name."""
        self.variables[self._find_variable(name)] = (name, value)

    def _find_variable(self, name: str) -> int:
        for index in range(len(self.variables) - 1, -1, -1):
            if self.variables[index][0] == name:
                return index
        return self.fail(f"undefined variable: {name}")  # `or` has not evaluated its declaration

    def pipeline(self, dot: Value, pipe: Pipe) -> Value:
        """Evaluate a pipeline, which may declare or assign variables, and return its value."""
        self.at = pipe
        self.deeper()
        piped: tuple[Value, ...] = ()
        for command in pipe.commands:
            self.budget.spend()
            piped = (self._command(dot, command, piped),)
        for name in pipe.declared:
            if pipe.assigns:
                self.set_variable(name, piped[0])
            else:
                self.variables.append((name, piped[0]))
        self.shallower()
        return piped[0]

    def _command(self, dot: Value, command: Command, piped: tuple[Value, ...]) -> Value:
        first, arguments = command.arguments[0], command.arguments[1:]
        if isinstance(first, Identifier):
            return self._function(dot, first, command, arguments, piped)
        if arguments or piped:
            self.fail(
                f"can't give argument to non-function {self._places.text(first.start, first.end)}", first
            )
        if isinstance(first, Constant) and first.value is None:
            self.fail("nil is not a command", first)
        return self._operand(dot, first)

    def _operand(self, dot: Value, node: Operand) -> Value:
        self.at = node
        match node:
            case Dot():
                return dot
            case Constant():
                return node.value
            case Variable():
                return self.variables[self._find_variable(node.name)][1]
            case Identifier():
                return self._function(dot, node, node, (), ())
            case Pipe():
                return self.pipeline(dot, node)
        value = self._operand(dot, node.base)
        for name in node.names:
            value = self._field(value, name, node)
        return value

    def _field(self, receiver: Value, name: str, node: Path) -> Value:
        """Return a field of a struct or an entry of a map; None for a missing entry or a field of nil."""
        value: Value = None
        if isinstance(receiver, dict):
            value = receiver.get(encoded(name))
        elif isinstance(receiver, Record) and name in receiver.fields:
            value = receiver.fields[name]
        elif receiver is not None:
            self.fail(f"can't evaluate field {name} in type {type_name(receiver)}", node)
        if isinstance(value, bytes):
            fits(len(value))
        return value

    def _argument(self, dot: Value, parameter: Parameter, node: Operand) -> Value:
        self.budget.spend()
        value = self._operand(dot, node)
        if isinstance(node, Constant) and parameter != "any" and type_name(value) != parameter:
            shown = self._places.text(node.start, node.end)
            wrong = f"expected {_EXPECTED[parameter]}; found {shown}"
            self.fail(wrong if value is not None else f"cannot assign nil to {parameter}", node)
        self._check_type(value, parameter, node)
        return value

    def _check_type(self, value: Value, parameter: Parameter, node: Node) -> None:
        if parameter == "any" or type_name(value) == parameter:
            return
        got = f"wrong type for value; expected {parameter}; got {type_name(value)}"
        self.fail(got if value is not None else f"invalid value; expected {parameter}", node)

    def _function(
        self,
        dot: Value,
        identifier: Identifier,
        whole: Command | Identifier,
        arguments: Sequence[Operand],
        piped: tuple[Value, ...],
    ) -> Value:
        name = identifier.name
        function = FUNCTIONS[name]
        self._check_count(identifier, function, len(arguments), len(piped))
        if name in ("and", "or"):
            return self._logic(dot, name, arguments, piped)
        wanted = function.parameters_for(len(arguments) + len(piped))
        given = [
            self._argument(dot, parameter, node) for parameter, node in zip(wanted, arguments, strict=False)
        ]
        for value in piped:
            self._check_type(value, wanted[-1], whole)
            given.append(value)
        try:
            self.budget.read(sum(map(size, given)))
            result = function.call(given, self.budget)
        except FunctionError as error:
            self.fail(f"error calling {name}: {error}", whole)
        if isinstance(result, bytes):
            fits(len(result))
            self.budget.read(len(result))
        return result

    def _check_count(self, identifier: Identifier, function: Function, written: int, piped: int) -> None:
        fixed, given = len(function.parameters), written + piped
        if given < fixed or (given > fixed and function.rest is None):
            want = f"at least {fixed} got {written}" if function.rest else f"{fixed} got {given}"
            self.fail(f"wrong number of args for {identifier.name}: want {want}", identifier)

    def _logic(self, dot: Value, name: str, arguments: Sequence[Operand], piped: tuple[Value, ...]) -> Value:
        """Evaluate `and` or `or` up to the first argument that decides."""
        value: Value = None
        for node in arguments:
            value = self._argument(dot, "any", node)
            if bool(value) == (name == "or"):
                return value
        return piped[0] if piped else value


def to_text(value: Value) -> bytes:
    """Return what an action writes for this value."""
    if isinstance(value, bytes):
        return value
    return NO_VALUE if value is None else sprint([value])
