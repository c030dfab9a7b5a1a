"""Lays out output: labeled fields, ages and tables, which fit a terminal or are unlimited in a pipe. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.text import Text

from cli.lines import Line

_GAP: Final = 2
ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"
_MIN_FIRST_WIDTH: Final = 7
_MIN_LAST_WIDTH: Final = 24  # the last column may wrap between words

Cell = str | tuple[str, str]  # a text, or a text and its style


def format_field(name: str, text: Text | str, style: str = "", *, width: int = 14) -> Line:
    """Return a line with a label; an empty name continues the field above."""
    text = Text(text, style=style) if isinstance(text, str) else text
    return Line(0, text, Text(f"{name:<{width}}", style="bold"))


def blank_line() -> Line:
    """Return an empty line."""
    return Line(0, Text())


def format_more(count: int, most: int, *, indent: int) -> Iterator[Line]:
    """Yield the number of entries that were left out, if only `most` of `count` are shown."""
    if count > most:
        yield Line(indent, Text(f"and {count - most:,} more, see -o json", style="dim"))


def format_age(seconds: float | None) -> str:
    """Return a duration with the largest suitable unit, rounded; "?" if it is unknown."""
    if seconds is None:
        return "?"
    seconds = max(0, round(seconds))
    for unit, size, until in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} d"


def pluralize(count: int, what: str, *, zero: str = "0") -> str:
    """Return the count with the noun, such as "1 Node" or "2 Nodes"."""
    return f"{f'{count:,}' if count else zero} {what}{'' if count == 1 else 's'}"


def format_names(names: Iterable[str], most: int = 5) -> str:
    """Return the names as text; of more than `most`, the rest is only counted."""
    listed = sorted(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")


def shorten(text: str, most: int = 200) -> str:
    """Return the text in one line of at most that many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + ELLIPSIS


def format_table(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    indent: int = 0,
    width: int = 0,
    is_last_column_prose: bool = True,
) -> Iterator[Line]:
    """Yield one line per row; with a `width`, the first column is truncated to leave room for the others.

    `is_last_column_prose`: the last column may wrap.
    """
    table = [[Text(cell) if isinstance(cell, str) else Text(*cell) for cell in row] for row in rows]
    widths = [max(len(title), *(len(row[at]) for row in table), 0) for at, title in enumerate(header)]
    if width:
        last = min(widths[-1], _MIN_LAST_WIDTH) if is_last_column_prose else widths[-1]
        others = sum(widths[1:-1]) + last + indent + _GAP * (len(header) - 1)
        widths[0] = min(widths[0], max(_MIN_FIRST_WIDTH, width - others))
    yield _format_row([Text(title, style="bold") for title in header], widths, indent)
    for row in table:
        yield _format_row([_truncate(row[0], widths[0]), *row[1:]], widths, indent)


def _format_row(row: Sequence[Text], widths: Sequence[int], indent: int) -> Line:
    label = Text()
    for cell, width in zip(row[:-1], widths, strict=False):
        label.append_text(cell).append(" " * (width - len(cell) + _GAP))
    if not row[-1].plain:
        label.rstrip()
    return Line(indent, row[-1], label)


def _truncate(cell: Text, width: int) -> Text:
    return cell if len(cell) <= width else cell[: width - 1] + Text(ELLIPSIS)
