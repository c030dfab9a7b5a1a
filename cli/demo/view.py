"""How the demo looks: a live table on a terminal, one line a second in a pipe, a summary at the end."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.demo.journeys import HOPS, Journey, Journeys, hop_percentiles

COLOURS = {"joining": "dim", "observed": "cyan", "enriched": "blue", "ready": "green", "blocked": "red"}
_MOST_TROUBLES = 20
_LINES_AROUND_ROWS = 9  # heading, bar, legend, table frame, prompt line


def live(journeys: Journeys, *, wanted: int, seconds: float, width: int, height: int) -> RenderableType:
    """The picture while nodes join: how many are where, and the nodes that moved last."""
    rows = list(journeys)
    unfinished = [journey for journey in rows if not journey.ready_at]
    room = max(3, height - _LINES_AROUND_ROWS)
    # The unfinished are what one watches; the rest of the room shows who arrived last.
    finished = [journey for journey in rows if journey.ready_at]
    shown = (unfinished[:room] + finished[::-1])[:room]
    table = Table(expand=False, pad_edge=False, box=None, header_style="bold")
    table.add_column("NODE", no_wrap=True)
    table.add_column("PLATFORM", no_wrap=True)
    table.add_column("STATE", no_wrap=True)
    for hop in HOPS:
        table.add_column(hop.upper(), justify="right", no_wrap=True)
    if width >= 100:
        table.add_column("", overflow="ellipsis", no_wrap=True)
    for journey in shown:
        cells: list[RenderableType] = [
            journey.name,
            journey.platform,
            Text(journey.state, style=COLOURS[journey.state]),
            *(_milliseconds(journey.seconds(hop)) for hop in HOPS),
        ]
        table.add_row(*cells, *([journey.trouble] if width >= 100 else []))
    hidden = len(rows) - len(shown)
    return Group(
        _heading(journeys, wanted, seconds, width),
        table,
        Text(f"... and {hidden} more" if hidden > 0 else ""),
    )


def _heading(journeys: Journeys, wanted: int, seconds: float, width: int) -> RenderableType:
    counts = journeys.counts()
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        Text(f"{counts['ready']}/{wanted} ready", style="bold"),
        ProgressBar(total=max(1, wanted), completed=counts["ready"], width=max(10, min(40, width - 60))),
        Text.assemble(*_legend(counts)),
        Text(f"{seconds:.1f} s", style="dim"),
    )
    return grid


def _legend(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    return [
        (f"{counts[state]} {state}  ", COLOURS[state])
        for state in COLOURS
        if counts[state] and state != "ready"
    ]


def line(journeys: Journeys, *, wanted: int, seconds: float) -> str:
    """The same in one line, for a pipe."""
    counts = journeys.counts()
    others = ", ".join(f"{counts[state]} {state}" for state in COLOURS if counts[state] and state != "ready")
    return f"{seconds:6.1f} s  {counts['ready']}/{wanted} ready" + (f"  ({others})" if others else "")


def summary(journeys: Journeys) -> RenderableType:
    """Percentiles of the way from joining to each hop."""
    heading = "From the kubelet's registration until"
    table = Table(title=heading, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    percentiles = hop_percentiles(journeys)
    for name in percentiles["ready"]:
        table.add_column(name, justify="right", no_wrap=True, min_width=9)
    meanings = {
        "observed": "observed  published by the watcher",
        "enriched": "enriched  its machine has answered",
        "ready": "ready     no uninitialized taint",
    }
    for hop in HOPS:
        table.add_row(meanings[hop], *(_milliseconds(value) for value in percentiles[hop].values()))
    return table


def before_and_after(before: Mapping[str, Any], after: Mapping[str, Any], width: int) -> RenderableType:
    """One node as its kubelet registered it, and as it is now."""
    left, right = (yaml.safe_dump(part, sort_keys=False, width=1000).rstrip() for part in (before, after))
    if width < 150:
        return Group(
            Text("before", style="bold"), Text(left), Text("\nafter", style="bold"), _marked(left, right)
        )
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("before", ratio=1, overflow="fold")
    table.add_column("after", ratio=1, overflow="fold")
    table.add_row(Text(left), _marked(left, right))
    return table


def _marked(left: str, right: str) -> Text:
    known = set(left.splitlines())
    text = Text()
    for row in right.splitlines():
        text.append(row + "\n", style="" if row in known else "green")
    return text


def troubles(journeys: Sequence[Journey]) -> RenderableType:
    """Which nodes did not become ready, and why."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NOT READY", no_wrap=True)
    table.add_column("STATE")
    table.add_column("WHY", overflow="fold")
    for journey in journeys[:_MOST_TROUBLES]:
        table.add_row(journey.name, journey.state, journey.trouble or "patience was over on its way")
    hidden = len(journeys) - _MOST_TROUBLES
    return Group(table, Text(f"... and {hidden} more")) if hidden > 0 else table


def step(console: Console, what: str, seconds: float) -> None:
    """One finished step of the preparation."""
    console.print(Text.assemble(("  ✓ ", "green"), f"{what:<58}", (f"{seconds:5.1f} s", "dim")))


def _milliseconds(seconds: float | None) -> str:
    if seconds is None or math.isnan(seconds):
        return "-"
    return f"{seconds * 1000:,.0f} ms"
