"""Parses the content of an action: pipelines, commands, operands."""

from typing import Final

from libs.gotemplate.bounds import MAX_DEPTH, MAX_VARIABLES
from libs.gotemplate.functions import FUNCTIONS
from libs.gotemplate.lexer import Kind, Token
from libs.gotemplate.numbers import parse_number
from libs.gotemplate.quoting import unquote
from libs.gotemplate.runes import encoded
from libs.gotemplate.token_stream import TokenStream
from libs.gotemplate.tree import (
    Bool,
    Chain,
    Command,
    Dot,
    Field,
    Identifier,
    Nil,
    NumberConstant,
    Operand,
    Pipe,
    String,
    Variable,
)

_OPERANDS: Final = frozenset(
    {
        Kind.BOOL, Kind.CHARACTER_CONSTANT, Kind.COMPLEX, Kind.DOT, Kind.FIELD, Kind.IDENTIFIER, Kind.NUMBER,
        Kind.NIL, Kind.RAW_STRING, Kind.STRING, Kind.VARIABLE, Kind.LEFT_PAREN,
    }
)  # fmt: skip
_LITERALS: Final = (Bool, String, NumberConstant, Nil, Dot)


class PipelineParser:
    """Parses pipelines from a stream and tracks the variables in scope."""

    def __init__(self, stream: TokenStream) -> None:
        self.stream: Final = stream
        self.variables = ["$"]
        self.depth = 0  # of blocks and parentheses

    def deeper(self) -> None:
        """Enter a block or a parenthesis; the caller leaves it with `depth -= 1`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.stream.fail(f"is nested deeper than MAX_DEPTH = {MAX_DEPTH}", kind="bound")

    def pipeline(self, context: str, end: Kind) -> Pipe:
        """Parse a pipeline and consume the token that ends it."""
        position = self.stream.peek_visible().position
        declared, assigns = self._declarations(context)
        commands: list[Command] = []
        while True:
            token = self.stream.next_visible()
            if token.kind is end:
                break
            if token.kind not in _OPERANDS:
                self.stream.unexpected(token, context)
            self.stream.put_back(token)
            commands.append(self._command())
        if not commands:
            self.stream.fail(f"missing value for {context}")
        for stage, command in enumerate(commands[1:], start=2):
            if isinstance(command.arguments[0], _LITERALS):
                self.stream.fail(f"non executable command in pipeline stage {stage}")
        return Pipe(position, tuple(commands), tuple(declared), assigns)

    def _declarations(self, context: str) -> tuple[list[str], bool]:
        """Parse `$x :=`, `$x =` and, for range, `$i, $x :=`; consume nothing if there is no declaration."""
        declared: list[str] = []
        stream = self.stream
        while stream.peek_visible().kind is Kind.VARIABLE:
            variable = stream.next()
            after = stream.next()
            sign = stream.next_visible() if after.kind is Kind.SPACE else after
            if sign.kind in (Kind.ASSIGN, Kind.DECLARE):
                self._declare(variable, declared)
                return declared, sign.kind is Kind.ASSIGN
            if sign.kind is not Kind.CHARACTER or sign.text != ",":
                stream.put_back(*((variable, sign) if after is sign else (variable, after, sign)))
                break
            self._declare(variable, declared)
            if context != "range" or len(declared) >= 2:
                stream.fail(f"too many declarations in {context}")
            following = stream.peek_visible().kind
            if following not in (Kind.VARIABLE, Kind.RIGHT_DELIMITER, Kind.RIGHT_PAREN):
                stream.fail("range can only initialize variables")
        return declared, False

    def _declare(self, variable: Token, declared: list[str]) -> None:
        declared.append(variable.text)
        self.variables.append(variable.text)
        if len(self.variables) > MAX_VARIABLES:
            self.stream.fail(
                f"has more than MAX_VARIABLES = {MAX_VARIABLES} variables in scope", kind="bound"
            )

    def _command(self) -> Command:
        """Parse operands up to a pipe symbol, which is consumed, or an end, which is not."""
        stream = self.stream
        position = stream.peek_visible().position
        arguments: list[Operand] = []
        while True:
            stream.peek_visible()
            operand = self._operand()
            if operand is not None:
                arguments.append(operand)
            token = stream.next()
            if token.kind is Kind.SPACE:
                continue
            if token.kind in (Kind.RIGHT_DELIMITER, Kind.RIGHT_PAREN):
                stream.put_back(token)
            elif token.kind is not Kind.PIPE:
                stream.unexpected(token, "operand")
            break
        if not arguments:
            stream.fail("empty command")
        return Command(position, tuple(arguments))

    def _operand(self) -> Operand | None:
        """Parse a term and the fields after it; None if the next token is not an operand."""
        term = self._term()
        first = self.stream.peek()
        if term is None or first.kind is not Kind.FIELD:
            return term
        names: list[str] = []
        while self.stream.peek().kind is Kind.FIELD:
            names.append(self.stream.next().text[1:])
        if isinstance(term, Field):
            return Field(first.position, (*term.names, *names))
        if isinstance(term, Variable):
            return Variable(first.position, (*term.names, *names))
        if not isinstance(term, Pipe | Identifier):
            self.stream.fail(f"unexpected . after term {_quoted(str(term))}")
        return Chain(first.position, term, tuple(names))

    def _term(self) -> Operand | None:
        token = self.stream.next_visible()
        match token.kind:
            case Kind.DOT:
                return Dot(token.position)
            case Kind.NIL:
                return Nil(token.position)
            case Kind.BOOL:
                return Bool(token.position, token.text == "true")
            case Kind.FIELD:
                return Field(token.position, (token.text[1:],))
            case Kind.IDENTIFIER | Kind.VARIABLE:
                return self._named(token)
            case Kind.LEFT_PAREN:
                self.deeper()
                pipe = self.pipeline("parenthesized pipeline", Kind.RIGHT_PAREN)
                self.depth -= 1
                return pipe
        return self._literal(token)

    def _named(self, token: Token) -> Identifier | Variable:
        if token.kind is Kind.VARIABLE:
            if token.text not in self.variables:
                self.stream.fail(f"undefined variable {_quoted(token.text)}", token)
            return Variable(token.position, (token.text,))
        if token.text not in FUNCTIONS:
            self.stream.fail(f"function {_quoted(token.text)} not defined", token)
        return Identifier(token.position, token.text)

    def _literal(self, token: Token) -> NumberConstant | String | None:
        try:
            if token.kind in (Kind.CHARACTER_CONSTANT, Kind.COMPLEX, Kind.NUMBER):
                return NumberConstant(token.position, token.text, parse_number(token.text))
            if token.kind in (Kind.STRING, Kind.RAW_STRING):
                return String(token.position, token.text, unquote(token.text))
        except ValueError as error:
            self.stream.fail(str(error), token)
        self.stream.put_back(token)
        return None


def _quoted(text: str) -> str:
    return '"' + encoded(text).decode("utf-8", "replace").replace("\\", "\\\\").replace('"', '\\"') + '"'
