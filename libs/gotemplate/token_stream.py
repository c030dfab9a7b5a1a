"""Provides tokens with a look-ahead of three, and raises parse errors with their place."""

from collections.abc import Iterator
from typing import NoReturn

from libs.gotemplate.errors import ErrorKind, Places, TemplateError
from libs.gotemplate.lexer import Kind, Token, tokens


class TokenStream:
    """The tokens of a source; up to three tokens can be put back."""

    def __init__(self, source: str, places: Places) -> None:
        self._places = places
        self._tokens: Iterator[Token] = tokens(source)
        self._held: list[Token] = []  # tokens that were put back; the next one is last
        self._newest = Token(Kind.EOF, "EOF", 0)
        self.action_line = 0  # first line of the current action; 0 outside an action

    def next(self) -> Token:
        """Return and consume the next token."""
        if self._held:
            return self._held.pop()
        self._newest = next(self._tokens, Token(Kind.EOF, "EOF", self._newest.position))
        return self._newest

    def put_back(self, *read: Token) -> None:
        """Put tokens back, given in the order in which they were read."""
        self._held.extend(reversed(read))

    def peek(self) -> Token:
        """Return the next token without consuming it."""
        token = self.next()
        self.put_back(token)
        return token

    def next_visible(self) -> Token:
        """Return and consume the next token that is not space."""
        while True:
            token = self.next()
            if token.kind is not Kind.SPACE:
                return token

    def peek_visible(self) -> Token:
        """Return the next token that is not space without consuming it; consume the space before it."""
        token = self.next_visible()
        self.put_back(token)
        return token

    def expect(self, kinds: tuple[Kind, ...], context: str) -> Token:
        """Return the next visible token. Raises TemplateError if its kind is not one of `kinds`."""
        token = self.next_visible()
        if token.kind not in kinds:
            self.unexpected(token, context)
        return token

    def line(self, token: Token) -> int:
        """Return the line of a token."""
        return self._places.line(token.position)

    def unexpected(self, token: Token, context: str) -> NoReturn:
        """Raise TemplateError for an unexpected token, with Go's message."""
        if token.kind is not Kind.ERROR:
            self.fail(f"unexpected {token} in {context}", token)
        extra = ""
        if self.action_line not in (0, self.line(token)):
            started = f" started at {self.action_line}"
            extra = started if token.text.endswith(" action") else f" in action{started}"
        self.fail(f"{token}{extra}", token)

    def fail(self, reason: str, token: Token | None = None, kind: ErrorKind = "parse") -> NoReturn:
        """Raise TemplateError at the token or, like Go, at the newest token."""
        raise TemplateError(kind, self._places.place((token or self._newest).position), reason)
