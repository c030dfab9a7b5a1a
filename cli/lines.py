"""Prints lines that wrap on a terminal and stay whole in a pipe."""

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.text import Text

from cli.progress import PROGRESS

_CONTINUATION_INDENT: Final = 2  # extra indentation of the continuation of a wrapped line
_MIN_WIDTH: Final = 20


class Line(NamedTuple):
    """One line of output."""

    indent: int
    text: Text
    label: Text = Text()  # stands before the text; wrapped text is aligned behind it
    is_unbroken: bool = False  # never wrapped, so that it can be copied from a terminal: a command


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
