"""The output of the demo: a live table on a terminal, lines in a pipe, and a summary."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.demo.node_progress import MILESTONES, DemoProgress, NodeProgress, compute_percentile
from cli.render.output import format_changes
from cli.render.preview import NodeChange

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
_OUR_TAINTS: Final = "node.cloudprovider.kubernetes.io/"
_PERCENTILES: Final = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
_MAX_PROBLEMS = 20
_LINES_AROUND_ROWS = 5  # bar, states, table heading, hidden, prompt line


def render_progress(progress: DemoProgress, *, seconds: float, width: int, height: int) -> RenderableType:
    """Return the live view: the counts, the unfinished nodes and the latest finished ones."""
    # Unfinished nodes come first; the remaining lines show the latest finished ones.
    unfinished = [node for node in progress if not node.ready_at]
    finished = [node for node in progress if node.ready_at]
    finished.sort(key=lambda node: node.seconds_until("ready") or 0, reverse=True)
    shown = (unfinished + finished)[: max(3, height - _LINES_AROUND_ROWS)]
    hidden = len(progress) - len(shown)
    return Group(
        _render_heading(progress, seconds, width),
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
    for node in shown:
        cells: list[RenderableType] = [
            node.name,
            node.platform,
            Text(node.state, style=COLOURS[node.state]),
            *(_format_milliseconds(node.seconds_until(hop)) for hop in MILESTONES),
        ]
        table.add_row(*cells, *([node.trouble] if with_trouble else []))
    return table


def _render_heading(progress: DemoProgress, seconds: float, width: int) -> RenderableType:
    """Return two lines of fixed layout: the overall progress, and the number of nodes per state."""
    counts, nodes = progress.count_states(), len(progress)
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


def format_progress(progress: DemoProgress, *, seconds: float) -> str:
    """Return the progress in one line, for a pipe."""
    counts = progress.count_states()
    others = ", ".join(
        f"{counts[state]} {_TEXTS.get(state, state)}"
        for state in COLOURS
        if counts[state] and state != "ready"
    )
    return f"{seconds:6.1f} s  {counts['ready']}/{len(progress)} ready" + (f"  ({others})" if others else "")


def render_summary(progress: DemoProgress) -> RenderableType:
    """Return the percentiles of the time from joining to each milestone."""
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("Time from joining until", no_wrap=True, header_style="bold")
    for name in _PERCENTILES:
        table.add_column(name, justify="right", no_wrap=True, min_width=9)
    for hop in MILESTONES:
        times = [seconds for node in progress if (seconds := node.seconds_until(hop)) is not None]
        figures = (compute_percentile(times, percent) for percent in _PERCENTILES.values())
        table.add_row(_MEANINGS[hop], *map(_format_milliseconds, figures))
    return table


def format_certificates(progress: DemoProgress) -> str:
    """Return one line: the number of certificates and the time since the request."""
    requesters = [node for node in progress if node.certificate_requested_at]
    elapsed = (node.seconds_until("certificate_issued", since="certificate_requested") for node in requesters)
    times = [seconds for seconds in elapsed if seconds is not None]
    counts = f"{len(times)} of {len(requesters)} certificates issued"
    if not times:
        return counts
    median, longest = (_format_milliseconds(compute_percentile(times, percent)) for percent in (50, 100))
    return f"{counts} (p50 {median}, max {longest})"


def render_node_changes(name: str, changes: Iterable[NodeChange]) -> RenderableType:
    """Return what a cloud controller manager has changed since the kubelet registered the Node."""
    ours = (
        change
        for change in changes
        if change.kind not in ("annotation", "taint") or change.key.startswith(_OUR_TAINTS)
    )
    heading = Text(f"Node {name} since its kubelet registered it", style="bold")
    return Group(heading, *(line.text for line in format_changes(ours)))


def render_list(heading: str, lines: Sequence[str]) -> RenderableType:
    """Return a heading and one line per entry."""
    return Group(Text(heading, style="bold"), *(Text(f"  {line}") for line in lines))


def render_commands(heading: str, rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Return two columns with commands to copy; the lines never wrap."""
    width = max(len(left) for left, _ in rows)
    return render_list(heading, [f"{left:<{width}}  {right}" for left, right in rows])


def render_problems(progress: DemoProgress) -> Iterator[RenderableType]:
    """Yield the nodes that are not ready, and those without the requested certificate, with the reason."""
    if stuck := [(node.name, node.state, node.why_not_ready) for node in progress if not node.is_settled]:
        yield _render_reasons(("NOT READY", "STATE", "WHY"), stuck)
    without = [(node.name, node.certificate_trouble or "timeout") for node in progress.without_certificate]
    if without:
        yield _render_reasons(("NO CERTIFICATE", "WHY"), without)


def _render_reasons(header: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        table.add_column(title, no_wrap=title == header[0], overflow="fold")
    for row in rows[:_MAX_PROBLEMS]:
        table.add_row(*row)
    hidden = len(rows) - _MAX_PROBLEMS
    return Group(table, Text(f"... and {hidden} more")) if hidden > 0 else table


def render_step(what: str, seconds: float) -> RenderableType:
    """Return one finished step of the start."""
    return Text.assemble(("  ✓ ", "green"), f"{what:<52}", (f"{seconds:5.1f} s", "dim"))


def _format_milliseconds(seconds: float | None) -> str:
    if seconds is None or math.isnan(seconds):
        return "-"
    return f"{seconds * 1000:,.0f} ms"
