"""Parses the content of an action: pipelines, commands, operands."""

from typing import Final, NoReturn

from libs.gotemplate.bounds import MAX_DEPTH, MAX_VARIABLES
from libs.gotemplate.errors import ErrorKind, FunctionError, Places, TemplateError
from libs.gotemplate.functions import FUNCTIONS, REFUSED
from libs.gotemplate.lexer import Token, tokenize
from libs.gotemplate.printf import parse_format
from libs.gotemplate.quoting import parse_number, quote_text, unquote
from libs.gotemplate.tree import Command, Constant, Dot, Identifier, Operand, Path, Pipe, Term, Variable

_TERMS: Final = frozenset({".", "field", "(", "variable", "function", "string", "number"})
_KEYWORD_CONSTANTS: Final = {"nil": None, "true": True, "false": False}


class TokenStream:
    """The tokens of a source. Raises TemplateError with their place."""

    def __init__(self, source: str, places: Places) -> None:
        self._places = places
        self._tokens = tokenize(source)
        self._next = 0

    def next(self) -> Token:
        """Return and consume the next token; the last one remains."""
        token = self.peek()
        self._next += 1
        return token

    def peek(self, offset: int = 0) -> Token:
        """Return the token after the next `offset` tokens, without consuming it."""
        return self._tokens[min(self._next + offset, len(self._tokens) - 1)]

    def skip(self, kind: str) -> bool:
        """Consume the next token if it is of this kind; return whether it is."""
        found = self.peek().kind == kind
        self._next += found
        return found

    def expect(self, kind: str, context: str) -> Token:
        """Return and consume the next token. Raises TemplateError if it is not of this kind."""
        token = self.next()
        return token if token.kind == kind else self.unexpected(token, context)

    def unexpected(self, token: Token, context: str) -> NoReturn:
        """Raise TemplateError for an error of the lexer, or for a token that is wrong here."""
        self.fail(str(token) if token.kind == "error" else f"unexpected {token} in {context}", token)

    def fail(self, reason: str, token: Token, kind: ErrorKind = "parse") -> NoReturn:
        """Raise TemplateError at the token."""
        raise TemplateError(kind, self._places.place(token.start), reason)

    def string(self, token: Token) -> bytes:
        """Return the value of a string token."""
        try:
            return unquote(token.text)
        except ValueError as error:
            self.fail(str(error), token)


class PipelineParser:
    """Parses pipelines from a stream and tracks the variables in scope."""

    def __init__(self, stream: TokenStream, depth: int) -> None:
        self.stream: Final = stream
        self.variables = ["$"]
        self.depth = depth  # of blocks and parentheses

    def deeper(self) -> None:
        """Enter a block or a parenthesis; the caller leaves it with `depth -= 1`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.stream.fail(f"is nested deeper than MAX_DEPTH = {MAX_DEPTH}", self.stream.peek(), "bound")

    def pipeline(self, context: str, end: str) -> Pipe:
        """Parse a pipeline and consume the token that ends it."""
        stream = self.stream
        start = stream.peek().start
        declared, assigns = self._declarations(context)
        if stream.peek().kind == end:
            stream.fail(f"missing value for {context}", stream.peek())
        commands = [self._command(context)]
        while stream.skip("|") and stream.peek().kind != end:
            stage = stream.peek()
            commands.append(self._command(context))
            if isinstance(commands[-1].arguments[0], Constant | Dot):
                stream.fail(f"non executable command in pipeline stage {len(commands)}", stage)
        stream.expect(end, context)
        return Pipe(start, commands[-1].end, tuple(commands), tuple(declared), assigns)

    def _declarations(self, context: str) -> tuple[list[str], bool]:
        """Parse `$x :=`, `$x =` and, for range, `$i, $x :=`; consume nothing if there is no declaration."""
        stream, most = self.stream, 2 if context == "range" else 1
        names, offset = [stream.peek()], 1
        while len(names) < most and stream.peek(offset).kind == ",":
            names.append(stream.peek(offset + 1))
            offset += 2
        sign = stream.peek(offset)
        if sign.kind not in ("=", ":=") or any(name.kind != "variable" for name in names):
            return [], False
        for name in names:
            self._check_variable(name, is_new=sign.kind == ":=")
            stream.next()
            stream.next()
        return [name.text for name in names], sign.kind == "="

    def _check_variable(self, name: Token, *, is_new: bool) -> None:
        if is_new:
            self.variables.append(name.text)
        elif name.text not in self.variables:
            self.stream.fail(f"undefined variable {quote_text(name.text)}", name)
        if len(self.variables) > MAX_VARIABLES:
            bound = f"has more than MAX_VARIABLES = {MAX_VARIABLES} variables in scope"
            self.stream.fail(bound, name, "bound")

    def _command(self, context: str) -> Command:
        """Parse operands, which spaces separate."""
        stream, arguments = self.stream, list[Operand]()
        first = stream.peek()
        while not arguments or stream.peek().is_spaced:
            operand = self._operand()
            if operand is None:
                break
            arguments.append(operand)
        if not arguments:
            stream.unexpected(first, context)
        match arguments:
            case [Identifier(name="printf"), Constant(value=bytes() as template), *_]:
                try:
                    parse_format(template)
                except FunctionError as error:
                    stream.fail(str(error), first)
        return Command(first.start, arguments[-1].end, tuple(arguments))

    def _operand(self) -> Operand | None:
        """Parse a term and the fields directly after it; None if the next token does not begin a term."""
        stream, first = self.stream, self.stream.peek()
        term = self._term()
        names = [first.text[1:]] if first.kind == "field" else []
        end = first.end if term is None else term.end
        while stream.peek().kind == "field" and not stream.peek().is_spaced and term is not None:
            end = stream.peek().end
            names.append(stream.next().text[1:])
        if not names or term is None:
            return term
        if isinstance(term, Constant) or (isinstance(term, Dot) and first.kind == "."):
            stream.fail(f"unexpected . after term {quote_text(first.text)}", first)
        return Path(first.start, end, term, tuple(names))

    def _term(self) -> Term | None:
        token = self.stream.peek()
        if token.kind not in _TERMS and token.kind not in _KEYWORD_CONSTANTS:
            return None
        self.stream.next()
        match token.kind:
            case "." | "field":
                return Dot(token.start, token.end)
            case "(":
                self.deeper()
                pipe = self.pipeline("parenthesized pipeline", ")")
                self.depth -= 1
                return pipe
            case "variable":
                self._check_variable(token, is_new=False)
                return Variable(token.start, token.end, token.text)
            case "function":
                self._check_function(token)
                return Identifier(token.start, token.end, token.text)
        return Constant(token.start, token.end, self._constant(token))

    def _check_function(self, token: Token) -> None:
        if token.text in REFUSED:
            self.stream.fail(f"function {token.text} is not supported: {REFUSED[token.text]}", token)
        if token.text not in FUNCTIONS:
            self.stream.fail(f"function {quote_text(token.text)} not defined", token)

    def _constant(self, token: Token) -> bool | int | float | bytes | None:
        if token.kind in _KEYWORD_CONSTANTS:
            return _KEYWORD_CONSTANTS[token.kind]
        if token.kind == "string":
            return self.stream.string(token)
        try:
            return parse_number(token.text)
        except ValueError as error:
            self.stream.fail(str(error), token)
