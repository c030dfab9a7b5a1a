"""Tokens with three of look-ahead, and the place that a parse error names."""

from collections.abc import Iterator
from typing import NoReturn

from libs.gotemplate.errors import ErrorKind, Places, TemplateError
from libs.gotemplate.lexer import Kind, Token, tokens


class TokenStream:
    """The parser's view of the source: next, peek, and up to three tokens put back."""

    def __init__(self, source: str, places: Places) -> None:
        self._places = places
        self._tokens: Iterator[Token] = tokens(source)
        self._held: list[Token] = []  # put back, the next one last
        self._newest = Token(Kind.EOF, "EOF", 0)
        self.action_line = 0  # where the action that is being parsed began; 0 outside

    def next(self) -> Token:
        """The next token."""
        if self._held:
            return self._held.pop()
        self._newest = next(self._tokens, Token(Kind.EOF, "EOF", self._newest.position))
        return self._newest

    def put_back(self, *read: Token) -> None:
        """Undo: the tokens in the order in which they were read."""
        self._held.extend(reversed(read))

    def peek(self) -> Token:
        """The next token, which stays."""
        token = self.next()
        self.put_back(token)
        return token

    def next_visible(self) -> Token:
        """The next token that is no space."""
        while True:
            token = self.next()
            if token.kind is not Kind.SPACE:
                return token

    def peek_visible(self) -> Token:
        """The same, which stays; the space before it is gone."""
        token = self.next_visible()
        self.put_back(token)
        return token

    def expect(self, kinds: tuple[Kind, ...], context: str) -> Token:
        """The next visible token, which must be one of these."""
        token = self.next_visible()
        if token.kind not in kinds:
            self.unexpected(token, context)
        return token

    def line(self, token: Token) -> int:
        """The line of a token."""
        return self._places.line(token.position)

    def unexpected(self, token: Token, context: str) -> NoReturn:
        """Fail on a token, in Go's words."""
        if token.kind is not Kind.ERROR:
            self.fail(f"unexpected {token} in {context}", token)
        extra = ""
        if self.action_line not in (0, self.line(token)):
            started = f" started at {self.action_line}"
            extra = started if token.text.endswith(" action") else f" in action{started}"
        self.fail(f"{token}{extra}", token)

    def fail(self, reason: str, token: Token | None = None, kind: ErrorKind = "parse") -> NoReturn:
        """Fail at a token; if none is to blame, at the newest, as Go does."""
        raise TemplateError(kind, self._places.place((token or self._newest).position), reason)
