"""Splits a source into tokens. An error is the last token, so that the parser reports the first error."""

import re
from typing import Final, NamedTuple

from libs.gotemplate.quoting import quote_text

SPACES: Final = " \t\r\n"
KEYWORDS: Final = frozenset(
    {
        "block", "break", "continue", "define", "else", "end", "if", "range", "template", "with",
        "nil", "true", "false",
    }
)  # fmt: skip

_OPEN: Final = re.compile(r"\{\{(?P<trim>-[ \t\r\n])?(?P<comment>/\*)?")
_CLOSE: Final = re.compile(r"[ \t\r\n]-\}\}[ \t\r\n]*|\}\}")
_SPACE: Final = re.compile(r"[ \t\r\n]+(?!-\}\})")  # the last space before -}} belongs to the trim marker
_TOKEN: Final = re.compile(
    r"""(?P<string>"(?:\\[^\n]|[^"\\\n])*"|`[^`]*`)"""
    r"|(?P<number>[+-]?\.?[0-9](?:[eEpP][+-]|[\w.])*)"
    r"|(?P<name>\.\w+|\$\w*|[^\W\d]\w*)"
    r"|(?P<sign>:=|[=|(),.])"
)
_NAMES_END: Final = re.compile(r"[ \t\r\n.,|:()]|\}\}|\Z")
_QUOTES: Final = {
    '"': "unterminated quoted string",
    "`": "unterminated raw quoted string",
    "'": 'constants in single quotes are not supported: write "text" in double quotes',
}


class Token(NamedTuple):
    """A part of the source.

    `kind` is "text", "{{", "}}", "string", "number", "field", "variable", "function", "EOF" or "error"; for a
    keyword or other sign it is the text.
    """

    kind: str
    text: str
    start: int
    end: int
    is_spaced: bool = False  # follows a space

    def __str__(self) -> str:
        if self.kind in ("EOF", "error"):
            return self.text
        if self.kind in KEYWORDS:
            return f"<{self.text}>"
        return quote_text(self.text[:10]) + ("..." if len(self.text) > 10 else "")


def tokenize(source: str) -> list[Token]:
    """Return all tokens; the last one is of kind "EOF" or "error"."""
    tokens: list[Token] = []
    try:
        _Lexer(source, tokens).run()
    except _SyntaxError as error:
        tokens.append(Token("error", str(error), error.position, error.position))
    return tokens


class _SyntaxError(Exception):
    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position: Final = position


class _Lexer:
    def __init__(self, source: str, tokens: list[Token]) -> None:
        self._source = source
        self._tokens = tokens
        self._position = 0

    def run(self) -> None:
        """Append all tokens."""
        source = self._source
        while (opened := _OPEN.search(source, self._position)) is not None:
            self._text(opened.start(), is_trimmed=opened["trim"] is not None)
            self._position = opened.end()
            if opened["comment"]:
                self._comment()
            else:
                self._tokens.append(Token("{{", "{{", opened.start(), opened.end()))
                self._action()
        self._text(len(source), is_trimmed=False)
        self._tokens.append(Token("EOF", "EOF", len(source), len(source)))

    def _text(self, end: int, *, is_trimmed: bool) -> None:
        text = self._source[self._position : end]
        if is_trimmed:
            text = text.rstrip(SPACES)
        if text:
            self._tokens.append(Token("text", text, self._position, end))

    def _comment(self) -> None:
        end = self._source.find("*/", self._position)
        if end < 0:
            raise _SyntaxError("unclosed comment", self._position)
        closed = _CLOSE.match(self._source, end + 2)
        if closed is None:
            raise _SyntaxError("comment ends before closing delimiter", self._position)
        self._position = closed.end()

    def _action(self) -> None:
        """Append the tokens up to and including }}."""
        source = self._source
        while True:
            space = _SPACE.match(source, self._position)
            if space is not None:
                self._position = space.end()
            closed = _CLOSE.match(source, self._position)
            if closed is not None:
                self._append("}}", closed.end(), is_spaced=True)
                return
            if self._position >= len(source):
                raise _SyntaxError("unclosed action", self._position)
            self._token(is_spaced=space is not None)

    def _token(self, *, is_spaced: bool) -> None:
        source = self._source
        match = _TOKEN.match(source, self._position)
        if match is None:
            character = source[self._position]
            unknown = f"unrecognized character in action: {_unicode(character)}"
            raise _SyntaxError(_QUOTES.get(character, unknown), self._position)
        kind, text = match.lastgroup or "", match[0]
        if kind == "name":
            if not _NAMES_END.match(source, match.end()):
                raise _SyntaxError(f"bad character {_unicode(source[match.end()])}", match.end())
            names = {".": "field", "$": "variable"}
            kind = text if text in KEYWORDS else names.get(text[0], "function")
        elif kind == "sign":
            kind = text
        self._append(kind, match.end(), is_spaced=is_spaced)

    def _append(self, kind: str, end: int, *, is_spaced: bool) -> None:
        start, self._position = self._position, end
        self._tokens.append(Token(kind, self._source[start:end], start, end, is_spaced))


def _unicode(character: str) -> str:
    shown = f" '{character}'" if character.isprintable() else ""
    return f"U+{ord(character):04X}{shown}"
