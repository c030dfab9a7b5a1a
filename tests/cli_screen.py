"""What a command prints: in a pipe, or on a terminal of a width."""

import io
from collections.abc import Iterable

from rich.console import Console

from cli.lines import Line, print_lines


def render_lines(lines: Iterable[Line], width: int | None = None) -> str:
    """On a terminal of that width, in a pipe without one; no colours."""
    screen = io.StringIO()
    terminal = {"width": width or 80, "force_terminal": width is not None, "color_system": None}
    print_lines(lines, Console(file=screen, highlight=False, **terminal))  # type: ignore[arg-type]  # by name
    return screen.getvalue()
