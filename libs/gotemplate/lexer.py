"""Splits a source into tokens lazily, so that the parser reports the same first error as Go."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from libs.gotemplate.quoting import quote
from libs.gotemplate.runes import encoded, is_word

SPACES: Final = " \t\r\n"


class Kind(Enum):
    """The kind of a token."""

    ERROR = "error"
    BOOL = "bool"
    CHARACTER = "character"  # other punctuation
    CHARACTER_CONSTANT = "character constant"
    COMPLEX = "complex"
    ASSIGN = "="
    DECLARE = ":="
    EOF = "EOF"
    FIELD = "field"
    IDENTIFIER = "identifier"
    LEFT_DELIMITER = "{{"
    LEFT_PAREN = "("
    NUMBER = "number"
    PIPE = "|"
    RAW_STRING = "raw string"
    RIGHT_DELIMITER = "}}"
    RIGHT_PAREN = ")"
    SPACE = "space"
    STRING = "string"
    TEXT = "text"
    VARIABLE = "variable"
    BLOCK = "block"
    BREAK = "break"
    CONTINUE = "continue"
    DOT = "."
    DEFINE = "define"
    ELSE = "else"
    END = "end"
    IF = "if"
    NIL = "nil"
    RANGE = "range"
    TEMPLATE = "template"
    WITH = "with"


_KEYWORDS: Final = {
    kind.value: kind
    for kind in (
        Kind.BLOCK, Kind.BREAK, Kind.CONTINUE, Kind.DEFINE, Kind.ELSE, Kind.END,
        Kind.IF, Kind.NIL, Kind.RANGE, Kind.TEMPLATE, Kind.WITH,
    )
}  # fmt: skip
_WORDS: Final = {**_KEYWORDS, "true": Kind.BOOL, "false": Kind.BOOL}
_SINGLE: Final = {"=": Kind.ASSIGN, "|": Kind.PIPE, "(": Kind.LEFT_PAREN, ")": Kind.RIGHT_PAREN}
_QUOTED: Final = {
    '"': (re.compile(r'"(?:\\[^\n]|[^"\\\n])*"'), Kind.STRING, "unterminated quoted string"),
    "`": (re.compile(r"`[^`]*`"), Kind.RAW_STRING, "unterminated raw quoted string"),
    "'": (re.compile(r"'(?:\\[^\n]|[^'\\\n])*'"), Kind.CHARACTER_CONSTANT, "unterminated character constant"),
}
_NUMBER: Final = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]*(?:\.[0-7_]*)?|0[bB][01_]*(?:\.[01_]*)?"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)


class Token(NamedTuple):
    """A part of the source and its start, in characters."""

    kind: Kind
    text: str
    position: int

    def __str__(self) -> str:
        if self.kind in (Kind.EOF, Kind.ERROR):
            return self.text
        if self.kind is Kind.DOT or self.kind.value in _KEYWORDS:
            return f"<{self.text}>"
        long = len(self.text) > 10
        return quote(encoded(self.text[:10])).decode() + ("..." if long else "")


class _Lexer:
    def __init__(self, source: str) -> None:
        self._source = source
        self._position = 0
        self._parens = 0
        self._inside = False

    def tokens(self) -> Iterator[Token]:
        """Yield all tokens; the last one is EOF or ERROR."""
        while True:
            token = self._action() if self._inside else self._text()
            if token is not None:
                yield token
                if token.kind in (Kind.EOF, Kind.ERROR):
                    return

    def _token(self, kind: Kind, end: int) -> Token:
        start, self._position = self._position, end
        return Token(kind, self._source[start:end], start)

    def _error(self, message: str) -> Token:
        return Token(Kind.ERROR, message, self._position)

    def _text(self) -> Token | None:
        """Return the text up to the next action; None for a comment or text that trimming removes."""
        source, start = self._source, self._position
        delimiter = source.find("{{", start)
        if delimiter < 0:
            return self._token(Kind.TEXT if start < len(source) else Kind.EOF, len(source))
        if delimiter > start:
            self._position = delimiter
            text = source[start:delimiter]
            if self._trims_left(delimiter + 2):
                text = text.rstrip(SPACES)
            return Token(Kind.TEXT, text, start) if text else None
        opened = delimiter + 2
        after = opened + 2 if self._trims_left(opened) else opened
        if source.startswith("/*", after):
            self._position = after
            return self._comment()
        self._position, self._inside, self._parens = after, True, 0
        return Token(Kind.LEFT_DELIMITER, "{{", delimiter)

    def _comment(self) -> Token | None:
        end = self._source.find("*/", self._position + 2)
        if end < 0:
            return self._error("unclosed comment")
        closed = self._right_delimiter(end + 2)
        if closed is None:
            return self._error("comment ends before closing delimiter")
        self._position = self._after_right_delimiter(end + 2)
        return None

    def _trims_left(self, position: int) -> bool:
        return self._source[position : position + 1] == "-" and self._is_space(position + 1)

    def _is_space(self, position: int) -> bool:
        return position < len(self._source) and self._source[position] in SPACES

    def _right_delimiter(self, position: int) -> int | None:
        """Return the position of the braces of a }}, with or without trim marker, or None."""
        if self._is_space(position) and self._source.startswith("-}}", position + 1):
            return position + 2
        return position if self._source.startswith("}}", position) else None

    def _after_right_delimiter(self, position: int) -> int:
        braces = self._right_delimiter(position)
        assert braces is not None
        end = braces + 2
        if braces != position:
            while self._is_space(end):
                end += 1
        return end

    def _close(self) -> Token:
        braces = self._right_delimiter(self._position)
        assert braces is not None
        token = Token(Kind.RIGHT_DELIMITER, "}}", braces)
        self._position, self._inside = self._after_right_delimiter(self._position), False
        return token

    def _action(self) -> Token:
        source, position = self._source, self._position
        if self._right_delimiter(position) is not None:
            return self._error("unclosed left paren") if self._parens else self._close()
        if position >= len(source):
            return self._error("unclosed action")
        character = source[position]
        if character in SPACES:
            return self._space()
        if character in _QUOTED:
            pattern, kind, unterminated = _QUOTED[character]
            match = pattern.match(source, position)
            return self._token(kind, match.end()) if match else self._error(unterminated)
        if character in _SINGLE:
            return self._punctuation(character)
        if character in "$.+-:" or character.isdecimal() or is_word(character):
            return self._word(character)
        if character.isascii() and character.isprintable():
            return self._token(Kind.CHARACTER, position + 1)
        return self._error(f"unrecognized character in action: {_unicode(character)}")

    def _punctuation(self, character: str) -> Token:
        self._parens += {"(": 1, ")": -1}.get(character, 0)
        if self._parens < 0:
            return self._error("unexpected right paren")
        return self._token(_SINGLE[character], self._position + 1)

    def _space(self) -> Token:
        end = self._position
        while self._is_space(end):
            end += 1
        if self._source.startswith("-}}", end):
            end -= 1  # this space belongs to the trim marker
            if end == self._position:
                return self._close()
        return self._token(Kind.SPACE, end)

    def _word(self, character: str) -> Token:
        following = self._source[self._position + 1 : self._position + 2]
        if character == ":":
            if following != "=":
                return self._error("expected :=")
            return self._token(Kind.DECLARE, self._position + 2)
        if character == "$":
            return self._name(Kind.VARIABLE, Kind.VARIABLE)
        if character == "." and not ("0" <= following <= "9"):
            return self._name(Kind.FIELD, Kind.DOT)
        if character in "+-." or "0" <= character <= "9":
            return self._number()
        return self._name(Kind.IDENTIFIER, Kind.IDENTIFIER)

    def _name(self, kind: Kind, bare: Kind) -> Token:
        """Return a field, variable or identifier; `bare` is the kind if nothing follows the . or $."""
        end = self._position + 1
        while end < len(self._source) and is_word(self._source[end]):
            end += 1
        if not self._terminated(end):
            return self._error(f"bad character {_unicode(self._source[end])}")
        if end == self._position + 1:
            kind = bare
        if kind is Kind.IDENTIFIER:
            kind = _WORDS.get(self._source[self._position : end], kind)
        return self._token(kind, end)

    def _terminated(self, end: int) -> bool:
        return (
            end >= len(self._source)
            or self._source[end] in SPACES + ".,|:()"
            or self._source.startswith("}}", end)
        )

    def _number(self) -> Token:
        end = self._number_end(self._position)
        if end is None:
            return self._bad_number(self._position)
        if self._source[end : end + 1] not in ("+", "-"):
            return self._token(Kind.NUMBER, end)
        whole = self._number_end(end)
        if whole is None or self._source[whole - 1] != "i":
            return self._bad_number(end)
        return self._token(Kind.COMPLEX, whole)

    def _number_end(self, position: int) -> int | None:
        match = _NUMBER.match(self._source, position)
        assert match is not None  # the pattern also matches the empty text
        end = match.end()
        return None if end < len(self._source) and is_word(self._source[end]) else end

    def _bad_number(self, position: int) -> Token:
        match = _NUMBER.match(self._source, position)
        end = match.end() if match else position
        if end < len(self._source) and is_word(self._source[end]):
            end += 1
        return self._error(
            f"bad number syntax: {quote(encoded(self._source[self._position : end])).decode()}"
        )


def tokens(source: str) -> Iterator[Token]:
    """Yield the tokens of a template. Never raises: an error is a token of kind ERROR."""
    return _Lexer(source).tokens()


def _unicode(character: str) -> str:
    shown = f" '{character}'" if character.isprintable() else ""
    return f"U+{ord(character):04X}{shown}"
