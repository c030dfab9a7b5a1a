"""Why a template is wrong or gave nothing, with its place in the template."""

from bisect import bisect_left
from typing import Final, Literal

ErrorKind = Literal["parse", "exec", "bound"]

_LONGEST_CONTEXT: Final = 120  # characters of the template that an error shows


class FunctionError(Exception):
    """A function of a template refuses its arguments, in Go's words."""


class TemplateError(Exception):
    """`line:column: reason`; the column counts bytes from 0, as Go's does.

    kind: "parse" when the configuration is read, "exec" while it is rendered, "bound" when it costs too much.
    """

    def __init__(self, kind: ErrorKind, place: tuple[int, int], reason: str, context: str = "") -> None:
        self.kind: Final = kind
        self.line, self.column = place
        self.reason: Final = reason
        self.context: Final = context  # the part of the template that was being evaluated, as Go prints it
        super().__init__(str(self))

    def __str__(self) -> str:
        context = self.context
        if len(context) > _LONGEST_CONTEXT:
            context = context[:_LONGEST_CONTEXT] + "..."
        at = f"at <{context}>: " if context else ""
        return f"{self.line}:{self.column}: {at}{self.reason}"


class Places:
    """Where in a source a position is."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._newlines = [index for index, character in enumerate(source) if character == "\n"]

    def line(self, position: int) -> int:
        """The line, from 1."""
        return bisect_left(self._newlines, position) + 1

    def place(self, position: int) -> tuple[int, int]:
        """Line from 1, and column in bytes from 0."""
        line = self.line(position)
        start = self._newlines[line - 2] + 1 if line > 1 else 0
        return line, len(self._source[start:position].encode("utf-8", "surrogatepass"))
