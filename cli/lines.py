"""Lays out output and prints it: lines that wrap on a terminal and stay whole in a pipe."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.text import Text

from cli.progress import PROGRESS

_GAP: Final = 2
ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"
_MIN_FIRST_WIDTH: Final = 7
_MIN_LAST_WIDTH: Final = 24  # the last column may wrap between words

_CONTINUATION_INDENT: Final = 2  # extra indentation of the continuation of a wrapped line
_MIN_WIDTH: Final = 20

Cell = str | tuple[str, str]  # a text, or a text and its style


class Line(NamedTuple):
    """One line of output."""

    indent: int
    text: Text
    label: Text = Text()  # stands before the text; wrapped text is aligned behind it
    is_unbroken: bool = False  # never wrapped, so that it can be copied from a terminal: a command


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


def print_lines(lines: Iterable[Line], console: Console | None = None) -> None:
    """Print the lines: wrapped between words on a terminal, one line each in a pipe, for grep."""
    PROGRESS.end()
    console = console or Console(highlight=False)
    for line in lines:
        text, label = _sanitize(line.text), _sanitize(line.label)
        hanging = len(label) or _CONTINUATION_INDENT
        lead = Text(" " * line.indent) + label
        if line.is_unbroken or not console.is_terminal:
            console.print(lead + text, soft_wrap=True)
            continue
        parts = text.wrap(console, max(_MIN_WIDTH, console.width - line.indent - hanging))
        for number, part in enumerate(parts or [text]):
            console.print((Text(" " * (line.indent + hanging)) if number else lead) + part, soft_wrap=True)


def print_result(output: str, lines: Iterable[Line], document: Any) -> None:
    """Print the lines, or the JSON document if `output` is json."""
    if output == "json":
        print_json(document)
    else:
        print_lines(lines)


def get_width() -> int:
    """Return the width of the terminal; 0 in a pipe."""
    console = Console()
    return console.width if console.is_terminal else 0


def print_json(document: Any) -> None:
    """Print a JSON document of plain values and structs."""
    PROGRESS.end()
    click.echo(format_json(document))


def format_json(document: Any) -> str:
    """Return the text of a JSON document; control characters are escaped: they could steer a terminal."""
    text = json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(each if each == "\n" or each.isprintable() else json.dumps(each)[1:-1] for each in text)


def print_error(text: str) -> None:
    """Print an error to standard error, with control characters replaced."""
    PROGRESS.end()
    lines = (_escape_control_characters(line) for line in text.split("\n"))
    click.echo("\n".join(lines), err=True)


def _sanitize(text: Text) -> Text:
    """Replace control characters: texts from files and machines are untrusted."""
    if text.plain.isprintable():
        return text
    safe = text.copy()
    safe.plain = _escape_control_characters(text.plain)
    return safe


def _escape_control_characters(text: str) -> str:
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
