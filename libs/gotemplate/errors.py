"""The errors of parsing and rendering, with their place in the template."""

from bisect import bisect_left
from typing import Final, Literal

ErrorKind = Literal["parse", "exec", "bound"]

# Characters in an error: it goes into an Event, which has at most 1024, and may quote values of a machine.
_LONGEST_CONTEXT: Final = 120
_LONGEST_REASON: Final = 400


class FunctionError(Exception):
    """A template function rejects its arguments."""


class TemplateError(Exception):
    """`line:column: reason`; the column counts bytes from 0, as Go's does.

    `kind` is "parse" for an error in the source, "exec" for one of rendering, "bound" for an exceeded bound.
    """

    def __init__(self, kind: ErrorKind, place: tuple[int, int], reason: str, context: str = "") -> None:
        self.kind: Final = kind
        self.line, self.column = place
        self.reason: Final = reason
        self.context: Final = context  # the part of the source that was evaluated
        super().__init__(str(self))

    def __str__(self) -> str:
        at = f"at <{_cut(self.context, _LONGEST_CONTEXT)}>: " if self.context else ""
        return f"{self.line}:{self.column}: {at}{_cut(self.reason, _LONGEST_REASON)}"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "..."


class Places:
    """Converts positions in a source to lines and columns."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._newlines = [index for index, character in enumerate(source) if character == "\n"]

    def text(self, start: int, end: int) -> str:
        """Return a part of the source."""
        return self._source[start:end]

    def place(self, position: int) -> tuple[int, int]:
        """Return the line, from 1, and the column in bytes, from 0."""
        line = bisect_left(self._newlines, position) + 1
        start = self._newlines[line - 2] + 1 if line > 1 else 0
        return line, len(self._source[start:position].encode("utf-8", "surrogatepass"))
