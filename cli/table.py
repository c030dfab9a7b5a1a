"""Columns under each other: on a terminal within its width, in a pipe as wide as they are. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from cli.lines import Line

_GAP: Final = 2
_LEAST_OF_FIRST: Final = 7
_LEAST_OF_LAST: Final = 24  # the last column may be broken between words


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    indent: int = 0,
    width: int = 0,
    flows: bool = False,
) -> Iterator[Line]:
    """A line each. With a `width` the first column is cut so that the others have room, if that suffices.

    `flows`: the last column is prose.
    """
    widths = [max(len(title), *(len(row[at]) for row in rows), 0) for at, title in enumerate(head)]
    if width:
        last = min(widths[-1], _LEAST_OF_LAST) if flows else widths[-1]
        others = sum(widths[1:-1]) + last + indent + _GAP * (len(head) - 1)
        widths[0] = min(widths[0], max(_LEAST_OF_FIRST, width - others))
    yield _line([Text(title, style="bold") for title in head], widths, indent)
    for row in rows:
        yield _line([_cut(row[0], widths[0]), *row[1:]], widths, indent)


def _line(row: Sequence[Text], widths: Sequence[int], indent: int) -> Line:
    label = Text()
    for cell, width in zip(row[:-1], widths, strict=False):
        label.append_text(cell).append(" " * (width - len(cell) + _GAP))
    if not row[-1].plain:
        label.rstrip()
    return Line(indent, row[-1], label)


def _cut(cell: Text, width: int) -> Text:
    return cell if len(cell) <= width else cell[: width - 1] + Text("\N{HORIZONTAL ELLIPSIS}")
