"""Results as tables for a terminal: one per scenario, a column per mode; comparison of two results."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tests.bench.figures import (
    BenchRun,
    FigureSummary,
    RatioRow,
    compare_with_other,
    compute_ratio,
    summarize_runs,
)
from tests.bench.options import SCENARIOS, BenchOptions, Scenario
from tests.bench.results import BenchResults

# The prefixes of figures (before the colon), in the order of the tables.
_GROUPS = (
    "",
    "joins only",
    "pod CIDRs",
    "heartbeats only",
    "approve everything",
    "per node",
    "Kubernetes",
    "Talos",
    "controller",
    "ours",
    "other",
    "loop lag",
    "context",
)
# Groups with a figure per process, which differ by mode.
_SORTED = ("ours", "other", "loop lag", "context")
_WORTH_A_COLOUR = 0.1  # a smaller change is noise on most machines
# Fields of the environment and the options that limit no comparison.
_NOT_COMPARED: Final = frozenset(
    {"load_before", "scenarios", "modes", "runs", "patience", "profile", "keep_logs"}
)


Cell = str | Text


def render_results(results: BenchResults) -> RenderableType:
    """Tables of medians, with minimum and maximum if they differ; then the ratios to another controller."""
    found = summarize_runs(results.runs)
    tables = []
    for scenario in dict.fromkeys(name for name, _ in found):
        modes = [mode for name, mode in found if name == scenario]
        names = dict.fromkeys(name for mode in modes for name in found[scenario, mode])
        rows = {name: [_format_cell(found[scenario, mode].get(name)) for mode in modes] for name in names}
        tables.append(_make_table(_format_title(results.wanted, scenario), modes, rows))
    return Group(*tables, *_render_ratios(results.runs))


def _make_table(title: str, headings: Sequence[str], rows: Mapping[str, Sequence[Cell]]) -> Table:
    """A table with a row for each figure, in groups."""
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("figure")
    for heading in headings:
        table.add_column(heading, justify="right")
    for group in group_figures(rows):
        for name in group:
            table.add_row(name, *rows[name])
        table.add_section()
    return table


def _render_ratios(runs: Sequence[BenchRun]) -> Iterable[Table]:
    """For each mode of the other controller a table with a ratio for each of our modes."""
    found = compare_with_other(runs)
    for other in dict.fromkeys(pairing.other for pairing in found):
        by_mode = {
            pairing.ours: {row.title: row for row in rows}
            for pairing, rows in found.items()
            if pairing.other == other
        }
        rows: dict[str, list[Cell]] = {}
        for title in dict.fromkeys(title for of_mode in by_mode.values() for title in of_mode):
            of_modes = [of_mode.get(title) for of_mode in by_mode.values()]
            theirs = next(row.other for row in of_modes if row)
            rows[title] = [format_number(theirs), *(cell for row in of_modes for cell in _format_pair(row))]
        headings = [other, *(heading for mode in by_mode for heading in (mode, "ratio"))]
        yield _make_table(f"ours / {other}", headings, rows)


def _format_pair(row: RatioRow | None) -> tuple[Cell, Cell]:
    return (format_number(row.ours), _format_cell(row.ratio)) if row else ("-", _format_cell(None))


def format_host(results: BenchResults) -> str:
    """One line about the environment."""
    host = results.host
    return (
        f"{host.cores} cores of {host.processor}, {host.memory_gb:g} GB; Python {host.python}, "
        f"Kubernetes {host.kubernetes}; load {host.load_before:g} before; "
        f"{results.begun_at:%Y-%m-%d %H:%M} UTC"
    )


def render_comparison(old: BenchResults, new: BenchResults) -> RenderableType:
    """Medians of the figures that both results have; every rise is red, because more is always worse."""
    before, after = summarize_runs(old.runs), summarize_runs(new.runs)
    parts: list[RenderableType] = [Text(text, style="yellow") for text in list_differences(old, new)]
    both = [which for which in after if which in before]
    for which in both:
        rows: dict[str, list[Cell]] = {}
        for name in (name for name in after[which] if name in before[which]):
            then, now = before[which][name].median, after[which][name].median
            rows[name] = [format_number(then), format_number(now), _format_change(then, now)]
        parts.append(_make_table(" ".join(which), ("then", "now", "now / then"), rows))
    return Group(*parts) if both else Text("The two results have no scenario in common.")


def list_differences(old: BenchResults, new: BenchResults) -> list[str]:
    """The differences in environment and options that limit a comparison."""
    return [
        f"{name.replace('_', ' ')} differ: {one} then, {other} now"
        for then, now in ((old.host, new.host), (old.wanted, new.wanted))
        for name, one in msgspec.structs.asdict(then).items()
        if name not in _NOT_COMPARED and one != (other := getattr(now, name))
    ]


def format_number(value: float) -> str:
    """The number with three significant digits."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "> 5000"  # beyond the last bucket
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def group_figures(names: Iterable[str]) -> list[list[str]]:
    """The figures by group, in the order of the table."""
    groups: dict[str, list[str]] = {group: [] for group in _GROUPS}
    for name in dict.fromkeys(names):
        group, colon, _ = name.partition(": ")
        groups[group if colon and group in groups else ""].append(name)
    return [sorted(group) if kind in _SORTED else group for kind, group in groups.items() if group]


def _format_title(wanted: BenchOptions, scenario: Scenario) -> str:
    words = msgspec.structs.asdict(wanted) | {
        "pace": f"{wanted.concurrency} at a time" if wanted.concurrency else "all at once",
        "asking": ", each requests its certificate" if wanted.certificates else "",
        "pods": ", each gets pod CIDRs" if wanted.pod_cidrs else "",
    }
    return f"{scenario}: {SCENARIOS[scenario].title.format_map(words)}"


def _format_cell(summary: FigureSummary | None) -> Text:
    if summary is None:
        return Text("-", style="dim")
    text = Text(format_number(summary.median))
    if summary.least != summary.most:
        text.append(f"  {format_number(summary.least)}..{format_number(summary.most)}", style="dim")
    return text


def _format_change(then: float, now: float) -> Text:
    if now and not then:
        return Text("was none", style="red")
    by = compute_ratio(now, then)
    return Text(format_number(by), style=_choose_colour(by))


def _choose_colour(by: float) -> str:
    if math.isnan(by) or abs(by - 1) < _WORTH_A_COLOUR:
        return ""
    return "red" if by > 1 else "green"
