"""Renders a command's output for a pipe or a terminal of a given width; the folder of expected screens."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rich.console import Console

from cli.lines import Line, print_lines

TEXTS: Final = Path(__file__).parent / "unit" / "cli" / "texts"


def render_lines(lines: Iterable[Line], width: int | None = None) -> str:
    """Return the output on a terminal of that width, or in a pipe if it is None; without colors."""
    screen = io.StringIO()
    terminal = {"width": width or 80, "force_terminal": width is not None, "color_system": None}
    print_lines(lines, Console(file=screen, highlight=False, **terminal))  # type: ignore[arg-type]  # by name
    return screen.getvalue()


def read_screens(kind: str) -> dict[str, str]:
    """Return the recorded output of each case in `<kind>.txt`, where it stands below a line `==== <case>`."""
    sections = (TEXTS / f"{kind}.txt").read_text().removeprefix("==== ").split("\n==== ")
    found = (section.partition("\n") for section in sections)
    return {name: text.removesuffix("\n") + "\n" for name, _, text in found}
