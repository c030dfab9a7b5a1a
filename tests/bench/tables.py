"""Results as tables for a terminal: one per scenario, a column per mode; comparison of two results."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tests.bench.figures import (
    BenchRun,
    FigureSummary,
    compute_ratio,
    compute_ratios,
    list_values,
    summarize,
    summarize_runs,
)
from tests.bench.options import AGAINST_MODES, SCENARIOS, BenchOptions, Scenario
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
# Scenario, name and title of each compared figure. A controller's CPU and memory include its NATS server.
_COMPARED: Final[tuple[tuple[Scenario, str, str], ...]] = (
    ("burst", "all untainted s", "all untainted, s"),
    ("burst", "untainted p50 ms", "each node untainted, p50 ms"),
    ("burst", "untainted p99 ms", "each node untainted, p99 ms"),
    ("burst", "all issued s", "all certificates issued, s"),
    ("burst", "all usable s", "all with pod CIDRs and untainted, s"),
    ("burst", "controller: CPU s", "CPU of the controller, s"),
    ("burst", "controller: CPU of everything s", "CPU of everything, s"),
    ("burst", "context: kube-apiserver CPU s", "CPU of kube-apiserver, s"),
    ("burst", "context: etcd CPU s", "CPU of etcd, s"),
    ("burst", "context: controller-manager CPU s", "CPU of kube-controller-manager, s"),
    ("burst", "Kubernetes: all per node", "API requests per node"),
    ("burst", "controller: peak RSS MB", "peak memory of the controller, MB"),
    ("single", "untainted p50 ms", "one at a time: untainted, p50 ms"),
    ("single", "untainted p99 ms", "one at a time: untainted, p99 ms"),
)
_WORTH_A_COLOUR = 0.1  # a smaller change is noise on most machines
# Fields of the environment and the options that limit no comparison.
_NOT_COMPARED: Final = frozenset({"load_before", "scenarios", "modes", "runs", "patience", "keep_logs"})


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
    modes = dict.fromkeys(run.mode for run in runs)
    ours = [mode for mode in modes if mode not in AGAINST_MODES]
    for other in (mode for mode in modes if mode in AGAINST_MODES):
        rows: dict[str, list[Cell]] = {}
        for scenario, figure, title in _COMPARED:
            theirs = list_values(runs, scenario, other, figure)
            pairs = [_format_pair(list_values(runs, scenario, mode, figure), theirs) for mode in ours]
            if theirs and pairs:
                median = format_number(statistics.median(theirs.values()))
                rows[title] = [median, *(cell for pair in pairs for cell in pair)]
        headings = [other, *(heading for mode in ours for heading in (mode, "ratio"))]
        if rows:
            yield _make_table(f"ours / {other}", headings, rows)


def _format_pair(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[Cell, Cell]:
    """Our median, and the ratio."""
    ratios = compute_ratios(ours, theirs)
    if not ratios:
        return "-", _format_cell(None)
    return format_number(statistics.median(ours.values())), _format_cell(summarize(ratios))


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
