"""Evaluates pipelines: variables, fields, calls. Like Go's, errors name the node evaluated last."""

from collections.abc import Sequence
from typing import Final, NoReturn

from libs.gotemplate import calling
from libs.gotemplate.bounds import MAX_RUN_DEPTH, BoundExceeded, Budget, fits
from libs.gotemplate.errors import ErrorKind, FunctionError, Places, TemplateError
from libs.gotemplate.functions import FUNCTIONS
from libs.gotemplate.runes import encoded, valid
from libs.gotemplate.signatures import Parameter
from libs.gotemplate.tree import (
    Chain,
    Command,
    Dot,
    Field,
    Identifier,
    Item,
    Nil,
    Operand,
    Pipe,
    Variable,
)
from libs.gotemplate.values import GoMap, Record, Value, size, truth, type_name


class _Missing:
    """The pipe passes no value, which differs from nil."""


_MISSING: Final = _Missing()
_Final = Value | _Missing
_Place = Operand | Command | Item


class Evaluator:
    """The state of one rendering: variables, the place for errors, and the remaining budget."""

    def __init__(self, places: Places, data: Value, budget: Budget) -> None:
        self._places = places
        self.budget: Final = budget
        self.variables: list[tuple[str, Value]] = [("$", data)]
        self.at: _Place | None = None
        self._depth = 0

    def fail(self, reason: str, kind: ErrorKind = "exec") -> NoReturn:
        """Raise TemplateError at the node that was evaluated last."""
        at = self.at
        place = self._places.place(at.position) if at is not None else (1, 0)
        raise TemplateError(kind, place, reason, "" if at is None else str(at))

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
        for index in range(len(self.variables) - 1, -1, -1):
            if self.variables[index][0] == name:
                self.variables[index] = (name, value)
                return
        self.fail(f"undefined variable: {name}")

    def pipeline(self, dot: Value, pipe: Pipe | None) -> Value:
        """Evaluate a pipeline, which may declare or assign variables, and return its value."""
        if pipe is None:
            return None
        self.at = pipe
        self.deeper()
        value: _Final = _MISSING
        for command in pipe.commands:
            self.budget.spend()
            value = self._command(dot, command, value)
        assert not isinstance(value, _Missing)
        for name in pipe.declared:
            if pipe.assigns:
                self.set_variable(name, value)
            else:
                self.variables.append((name, value))
        self.shallower()
        return value

    def _command(self, dot: Value, command: Command, final: _Final) -> Value:
        first, arguments = command.arguments[0], command.arguments
        match first:
            case Field() | Chain() | Variable():
                return self._path(dot, first, arguments, final)
            case Identifier():
                return self._function(dot, first, command, arguments[1:], final)
            case Pipe():
                self._no_arguments(arguments, final)
                return self.pipeline(dot, first)
        self.at = first
        self._no_arguments(arguments, final)
        if isinstance(first, Dot):
            return dot
        if isinstance(first, Nil):
            self.fail("nil is not a command")
        return self._constant(first)

    def _constant(self, node: Operand) -> Value:
        try:
            return calling.ideal(node)
        except FunctionError as error:
            self.fail(str(error))

    def _no_arguments(self, arguments: Sequence[Operand], final: _Final) -> None:
        if len(arguments) > 1 or not isinstance(final, _Missing):
            self.fail(f"can't give argument to non-function {arguments[0]}")

    def _variable(self, name: str) -> Value:
        for known, value in reversed(self.variables):
            if known == name:
                return value
        return self.fail(f"undefined variable: {name}")

    def _path(
        self, dot: Value, node: Field | Chain | Variable, arguments: Sequence[Operand], final: _Final
    ) -> Value:
        """Evaluate `.A.B`, `$x.A` or `(pipeline).A`."""
        self.at = node
        names = node.names
        if isinstance(node, Field):
            value = dot
        elif isinstance(node, Variable):
            value, names = self._variable(names[0]), names[1:]
        else:
            value = self._operand(dot, node.node)
        if not names:
            self._no_arguments(arguments or (node,), final)
            return value
        for name in names[:-1]:
            value = self._field(value, name, has_arguments=False)
        given = len(arguments) > 1 or not isinstance(final, _Missing)
        return self._field(value, names[-1], has_arguments=given)

    def _field(self, receiver: Value, name: str, *, has_arguments: bool) -> Value:
        """Return a field of a struct or an entry of a map; None for a missing entry or a field of nil."""
        if receiver is None:
            return None
        if isinstance(receiver, Record) and name in receiver.fields:
            if has_arguments:
                self.fail(f"{name} has arguments but cannot be invoked as function")
            return self._read(receiver.fields[name])
        if isinstance(receiver, GoMap):
            if has_arguments:
                self.fail(f"{name} is not a method but has arguments")
            return self._read(receiver.entries.get(encoded(name)))
        return self.fail(f"can't evaluate field {name} in type {type_name(receiver)}")

    def _read(self, value: Value) -> Value:
        if isinstance(value, bytes):
            fits(len(value))
        return value

    def _operand(self, dot: Value, node: Operand) -> Value:
        """Evaluate an argument that is not a constant."""
        self.at = node
        match node:
            case Dot():
                return dot
            case Pipe():
                return self.pipeline(dot, node)
            case Identifier():
                return self._function(dot, node, node, (), _MISSING)
            case Field() | Variable() | Chain():
                return self._path(dot, node, (), _MISSING)
        raise AssertionError(node)

    def _argument(self, dot: Value, parameter: Parameter, node: Operand) -> Value:
        self.budget.spend()
        self.at = node
        try:
            if isinstance(node, Dot | Pipe | Identifier | Field | Variable | Chain):
                return calling.assignable(self._operand(dot, node), parameter)
            return calling.constant(node, parameter)
        except calling.Mismatch as error:
            self.fail(str(error))

    def _function(
        self,
        dot: Value,
        identifier: Identifier,
        whole: Command | Identifier,
        arguments: Sequence[Operand],
        final: _Final,
    ) -> Value:
        self.at = identifier
        name = identifier.name
        function = FUNCTIONS[name]
        piped = not isinstance(final, _Missing)
        try:
            calling.check_count(name, function, len(arguments), piped)
        except calling.Mismatch as error:
            self.fail(str(error))
        if name in ("and", "or"):
            return self._logic(dot, name, arguments, final)
        wanted = calling.parameters(function, len(arguments) + piped)
        given = [self._argument(dot, p, node) for p, node in zip(wanted, arguments, strict=False)]
        if not isinstance(final, _Missing):
            given.append(self._piped(final, wanted[-1]))
        if name == "call":
            self._call(whole, arguments, given)
        try:
            self.budget.read(sum(map(size, given)))
            result = function.run(given, self.budget)
        except FunctionError as error:
            self.at = whole
            self.fail(f"error calling {name}: {error}")
        if isinstance(result, bytes):
            fits(len(result))
            self.budget.read(len(result))
        return result

    def _piped(self, final: Value, parameter: Parameter) -> Value:
        try:
            return calling.assignable(final, parameter)
        except calling.Mismatch as error:
            self.fail(str(error))

    def _logic(self, dot: Value, name: str, arguments: Sequence[Operand], final: _Final) -> Value:
        """Evaluate `and` or `or` up to the first argument that decides."""
        value: Value = None
        for node in arguments:
            value = self._argument(dot, "any", node)
            if truth(value) == (name == "or"):
                return value
        return value if isinstance(final, _Missing) else final

    def _call(
        self, whole: Command | Identifier, arguments: Sequence[Operand], given: Sequence[Value]
    ) -> NoReturn:
        """Fail for `call`, because no value is a function."""
        if given[0] is None:
            reason = "call of nil"
        else:
            piped = valid(given[0]) if isinstance(given[0], bytes) else f"<{type_name(given[0])} Value>"
            callee = str(arguments[0]) if arguments else piped
            reason = f"non-function {callee} of type {type_name(given[0])}"
        self.at = whole
        self.fail(f"error calling call: {reason}")
