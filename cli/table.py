"""Formats tables: within the width of a terminal, or unlimited in a pipe. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from cli.lines import Line

_GAP: Final = 2
_MIN_FIRST_WIDTH: Final = 7
_MIN_LAST_WIDTH: Final = 24  # the last column may wrap between words


def format_table(
    header: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    indent: int = 0,
    width: int = 0,
    is_last_column_prose: bool = False,
) -> Iterator[Line]:
    """Yield one line per row; with a `width`, the first column is truncated to leave room for the others.

    `is_last_column_prose`: the last column may wrap.
    """
    widths = [max(len(title), *(len(row[at]) for row in rows), 0) for at, title in enumerate(header)]
    if width:
        last = min(widths[-1], _MIN_LAST_WIDTH) if is_last_column_prose else widths[-1]
        others = sum(widths[1:-1]) + last + indent + _GAP * (len(header) - 1)
        widths[0] = min(widths[0], max(_MIN_FIRST_WIDTH, width - others))
    yield _format_row([Text(title, style="bold") for title in header], widths, indent)
    for row in rows:
        yield _format_row([_truncate(row[0], widths[0]), *row[1:]], widths, indent)


def _format_row(row: Sequence[Text], widths: Sequence[int], indent: int) -> Line:
    label = Text()
    for cell, width in zip(row[:-1], widths, strict=False):
        label.append_text(cell).append(" " * (width - len(cell) + _GAP))
    if not row[-1].plain:
        label.rstrip()
    return Line(indent, row[-1], label)


def _truncate(cell: Text, width: int) -> Text:
    return cell if len(cell) <= width else cell[: width - 1] + Text("\N{HORIZONTAL ELLIPSIS}")
