"""The output of the demo: a live table on a terminal, lines in a pipe, and a summary."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.demo.node_progress import MILESTONES, DemoProgress, NodeProgress, compute_milestone_percentiles

COLOURS: Final = {
    "joining": "dim", "observed": "cyan", "answered": "blue", "ready": "green", "blocked": "red",
    "excluded": "dim",
}  # fmt: skip
_TEXTS: Final = {"excluded": "excluded by `ownership`"}
_MEANINGS: Final = {
    "observed": "observed  by the watcher",
    "answered": "answered  by its machine",
    "ready": "ready     taint removed",
}
_MARKS: Final = {"+": "green", "-": "red", " ": ""}
_MAX_PROBLEMS = 20
_LINES_AROUND_ROWS = 5  # bar, states, table heading, hidden, prompt line


def render_progress(journeys: DemoProgress, *, seconds: float, width: int, height: int) -> RenderableType:
    """Return the live view: the counts, the unfinished nodes and the latest finished ones."""
    # Unfinished nodes come first; the remaining lines show the latest finished ones.
    unfinished = [journey for journey in journeys if not journey.ready_at]
    finished = [journey for journey in journeys if journey.ready_at]
    finished.sort(key=lambda journey: journey.seconds_until("ready") or 0, reverse=True)
    shown = (unfinished + finished)[: max(3, height - _LINES_AROUND_ROWS)]
    hidden = len(journeys) - len(shown)
    return Group(
        _render_heading(journeys, seconds, width),
        _render_rows(shown, with_trouble=width >= 100),
        Text(f"... and {hidden} more" if hidden > 0 else ""),
    )


def _render_rows(shown: Iterable[NodeProgress], *, with_trouble: bool) -> Table:
    table = Table(expand=False, pad_edge=False, box=None, header_style="bold")
    table.add_column("NODE", no_wrap=True, min_width=14)
    table.add_column("PLATFORM", no_wrap=True, min_width=9)
    table.add_column("STATE", no_wrap=True, min_width=8)
    for hop in MILESTONES:
        table.add_column(hop.upper(), justify="right", no_wrap=True, min_width=9)
    if with_trouble:
        table.add_column("", overflow="ellipsis", no_wrap=True)
    for journey in shown:
        cells: list[RenderableType] = [
            journey.name,
            journey.platform,
            Text(journey.state, style=COLOURS[journey.state]),
            *(_format_milliseconds(journey.seconds_until(hop)) for hop in MILESTONES),
        ]
        table.add_row(*cells, *([journey.trouble] if with_trouble else []))
    return table


def _render_heading(journeys: DemoProgress, seconds: float, width: int) -> RenderableType:
    """Return two lines of fixed layout: the overall progress, and the number of nodes per state."""
    counts, nodes = journeys.count_states(), len(journeys)
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        ProgressBar(total=nodes, completed=counts["ready"], width=max(10, min(60, width - 30))),
        Text(f"{counts['ready']}/{nodes} ready", style="bold"),
        Text(f"{seconds:.1f} s", style="dim"),
    )
    figures = len(str(nodes))
    gap = " " * (2 if figures < 4 else 1)  # all states fit 80 columns
    states = [
        (f"{counts[state]:{figures}} {state}{gap}", colour if counts[state] else "dim")
        for state, colour in COLOURS.items()
    ]
    return Group(grid, Text.assemble(*states))


def format_progress(journeys: DemoProgress, *, seconds: float) -> str:
    """Return the progress in one line, for a pipe."""
    counts = journeys.count_states()
    others = ", ".join(
        f"{counts[state]} {_TEXTS.get(state, state)}"
        for state in COLOURS
        if counts[state] and state != "ready"
    )
    return f"{seconds:6.1f} s  {counts['ready']}/{len(journeys)} ready" + (f"  ({others})" if others else "")


def render_summary(journeys: DemoProgress) -> RenderableType:
    """Return the percentiles of the time from joining to each milestone."""
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("Time from joining until", no_wrap=True, header_style="bold")
    percentiles = compute_milestone_percentiles(journeys)
    for name in percentiles["ready"]:
        table.add_column(name, justify="right", no_wrap=True, min_width=9)
    for hop in MILESTONES:
        table.add_row(_MEANINGS[hop], *(_format_milliseconds(value) for value in percentiles[hop].values()))
    return table


def render_node_changes(name: str, compared: Iterable[tuple[str, str]]) -> RenderableType:
    """Return the changes of one Node since its kubelet registered it."""
    rows = [Text(f"{mark} {line}", style=_MARKS[mark]) for mark, line in compared]
    return Group(Text(f"Node {name} since its kubelet registered it", style="bold"), *rows)


def render_list(heading: str, lines: Sequence[str]) -> RenderableType:
    """Return a heading and one line per entry."""
    return Group(Text(heading, style="bold"), *(Text(f"  {line}") for line in lines))


def render_commands(heading: str, rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Return two columns with commands to copy; the lines never wrap."""
    width = max(len(left) for left, _ in rows)
    return Group(Text(heading, style="bold"), *(Text(f"  {left:<{width}}  {right}") for left, right in rows))


def render_problems(journeys: Sequence[NodeProgress]) -> RenderableType:
    """Return the nodes that are not ready, with the reason."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NOT READY", no_wrap=True)
    table.add_column("STATE")
    table.add_column("WHY", overflow="fold")
    for journey in journeys[:_MAX_PROBLEMS]:
        table.add_row(journey.name, journey.state, journey.why_not_ready)
    hidden = len(journeys) - _MAX_PROBLEMS
    return Group(table, Text(f"... and {hidden} more")) if hidden > 0 else table


def render_missing_certificates(nodes: Sequence[tuple[str, str]]) -> RenderableType:
    """Return the nodes without the requested certificate, with the reason."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NO CERTIFICATE", no_wrap=True)
    table.add_column("WHY", overflow="fold")
    for node, why in nodes[:_MAX_PROBLEMS]:
        table.add_row(node, why)
    hidden = len(nodes) - _MAX_PROBLEMS
    return Group(table, Text(f"... and {hidden} more")) if hidden > 0 else table


def print_step(console: Console, what: str, seconds: float) -> None:
    """Print one finished step of the start."""
    console.print(Text.assemble(("  ✓ ", "green"), f"{what:<52}", (f"{seconds:5.1f} s", "dim")))


def _format_milliseconds(seconds: float | None) -> str:
    if seconds is None or math.isnan(seconds):
        return "-"
    return f"{seconds * 1000:,.0f} ms"
