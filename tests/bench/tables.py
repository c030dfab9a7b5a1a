"""Results as tables for a terminal: one per scenario, a column per mode; comparison of two results."""

import math
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tests.bench.bench_options import BenchOptions, Mode, Scenario
from tests.bench.figures import BenchRun, FigureSummary, compute_ratio, summarize_runs
from tests.bench.ratios import RatioRow, compare_with_other
from tests.bench.results import BenchResults

# The prefixes of figures (before the colon), in the order of the tables.
_GROUPS = (
    "",
    "scale",
    "joins only",
    "without pod CIDRs",
    "pod CIDRs",
    "heartbeats only",
    "CPU until the last node",
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
_SORTED = ("CPU until the last node", "ours", "other", "loop lag", "context")
_WORTH_A_COLOUR = 0.1  # a smaller change is noise on most machines


def render_results(results: BenchResults) -> RenderableType:
    """Tables of medians, with minimum and maximum if they differ."""
    found = summarize_runs(results.runs)
    return Group(
        *(
            _render_scenario(results.wanted, which, found)
            for which in _sort_scenarios(name for name, _ in found)
        ),
        *_render_ratios(results.runs),
    )


def _render_ratios(runs: Sequence[BenchRun]) -> Iterable[Table]:
    """For each mode of the other controller a table with a ratio for each of our modes."""
    found = compare_with_other(runs)
    for other in dict.fromkeys(pairing.other for pairing in found):
        by_mode = {
            pairing.ours: {row.title: row for row in rows}
            for pairing, rows in found.items()
            if pairing.other == other
        }
        table = Table(title=f"ours / {other}", title_justify="left", title_style="bold", pad_edge=False)
        table.add_column("figure")
        for heading in (other, *(part for mode in by_mode for part in (mode, "ratio"))):
            table.add_column(heading, justify="right")
        first = next(iter(by_mode.values()))
        for title in dict.fromkeys(title for rows in by_mode.values() for title in rows):
            cells = [cell for rows in by_mode.values() for cell in _format_ratio_cells(rows.get(title))]
            theirs = format_number(first[title].other) if title in first else "-"
            table.add_row(title, theirs, *cells)
        yield table


def _format_ratio_cells(row: RatioRow | None) -> tuple[str | Text, Text]:
    if row is None:
        return "-", Text("-", style="dim")
    return format_number(row.ours), _format_cell(row.ratio)


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
    both = [which for which in after if which in before]
    parts: list[RenderableType] = [Text(text, style="yellow") for text in list_differences(old, new)]
    parts += [_render_compared(which, before[which], after[which]) for which in both]
    return Group(*parts) if both else Text("The two results have no scenario in common.")


def list_differences(old: BenchResults, new: BenchResults) -> list[str]:
    """The differences in environment and options that limit a comparison."""
    pairs = {
        "processor": (old.host.processor, new.host.processor),
        "cores": (old.host.cores, new.host.cores),
        "Python": (old.host.python, new.host.python),
        "Kubernetes": (old.host.kubernetes, new.host.kubernetes),
        "nodes": (old.wanted.nodes, new.wanted.nodes),
        "sizes": (old.wanted.sizes, new.wanted.sizes),
        "concurrency": (old.wanted.concurrency, new.wanted.concurrency),
        "joins per second": (old.wanted.per_second, new.wanted.per_second),
        "steady nodes": (old.wanted.steady_nodes, new.wanted.steady_nodes),
        "nodes with rules": (old.wanted.rule_nodes, new.wanted.rule_nodes),
        "certificates": (old.wanted.certificates, new.wanted.certificates),
        "other controllers": (old.wanted.against, new.wanted.against),
        "soaks": (_describe_soak(old.wanted), _describe_soak(new.wanted)),
        "Leases": (old.wanted.lease_seconds, new.wanted.lease_seconds),
        "pod CIDRs": (old.wanted.pod_cidrs, new.wanted.pod_cidrs),
        "nodes that request certificates": (old.wanted.certificate_nodes, new.wanted.certificate_nodes),
    }
    return [f"{what} differ: {one} then, {other} now" for what, (one, other) in pairs.items() if one != other]


def _describe_soak(wanted: BenchOptions) -> tuple[float | None, ...]:
    return (wanted.soak_nodes, wanted.soak_hours, wanted.soak_hour_seconds, wanted.soak_faults)


def format_number(value: float) -> str:
    """The number with three significant digits."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "> 5000"  # beyond the last bucket
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _render_scenario(
    wanted: BenchOptions,
    scenario: Scenario,
    found: Mapping[tuple[Scenario, Mode], Mapping[str, FigureSummary]],
) -> Table:
    modes = [mode for name, mode in found if name == scenario]
    table = Table(
        title=_format_title(wanted, scenario), title_justify="left", title_style="bold", pad_edge=False
    )
    table.add_column("figure")
    for mode in modes:
        table.add_column(mode, justify="right")
    for group in group_figures(name for mode in modes for name in found[scenario, mode]):
        for name in group:
            table.add_row(name, *(_format_cell(found[scenario, mode].get(name)) for mode in modes))
        table.add_section()
    return table


def group_figures(names: Iterable[str]) -> list[list[str]]:
    """The figures by group, in the order of the table."""
    groups: dict[str, list[str]] = {group: [] for group in _GROUPS}
    for name in dict.fromkeys(names):
        group, colon, _ = name.partition(": ")
        groups[group if colon else ""].append(name)
    return [sorted(group) if kind in _SORTED else group for kind, group in groups.items() if group]


def _format_title(wanted: BenchOptions, scenario: Scenario) -> str:
    pace = f"{wanted.concurrency} at a time" if wanted.concurrency else "all at once"
    asking = ", each requests its certificate" if wanted.certificates else ""
    pods = ", each gets pod CIDRs" if wanted.pod_cidrs else ""
    what = {
        "burst": f"{wanted.nodes} nodes join, {pace}{asking}{pods}",
        "single": f"{wanted.singles} nodes join, one after the other{asking}",
        "steady": f"{wanted.steady_nodes} initialized nodes send heartbeats",
        "change": f"the address of a machine changes {wanted.changes} times",
        "certificates": f"{wanted.certificate_nodes} ready nodes request their certificate at once",
        "pod-cidrs-killed": f"{wanted.nodes} nodes join, {pace}, one of three replicas of ipam is killed",
        "leader-killed": f"{wanted.nodes} nodes file two requests each, the leader is killed "
        f"(Lease {wanted.lease_seconds} s)",
        "early": f"{wanted.certificate_nodes} nodes file two requests each, then join",
        "scale": f"bursts of {', '.join(map(str, wanted.sizes))} nodes, {pace}{asking}",
        "soak": f"{wanted.soak_nodes} nodes, {wanted.soak_hours} simulated hours of "
        f"{wanted.soak_hour_seconds:g} s, with "
        + ("reconnects" if wanted.soak_faults is None else f"random faults of seed {wanted.soak_faults}"),
        "rules": f"a rule for most of {wanted.rule_nodes} nodes changes {wanted.rule_changes} times",
    }
    return f"{scenario}: {what[scenario]}"


def _format_cell(summary: FigureSummary | None) -> Text:
    if summary is None:
        return Text("-", style="dim")
    text = Text(format_number(summary.median))
    if summary.least != summary.most:
        text.append(f"  {format_number(summary.least)}..{format_number(summary.most)}", style="dim")
    return text


def _render_compared(
    which: tuple[Scenario, Mode], old: Mapping[str, FigureSummary], new: Mapping[str, FigureSummary]
) -> Table:
    table = Table(title=" ".join(which), title_justify="left", title_style="bold", pad_edge=False)
    for heading in ("figure", "then", "now", "now / then"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for group in group_figures(name for name in new if name in old):
        for name in group:
            then, now = old[name].median, new[name].median
            table.add_row(name, format_number(then), format_number(now), _format_change(then, now))
        table.add_section()
    return table


def _format_change(then: float, now: float) -> Text:
    if now and not then:
        return Text("was none", style="red")
    by = compute_ratio(now, then)
    return Text(format_number(by), style=_choose_colour(by))


def _choose_colour(by: float) -> str:
    if math.isnan(by) or abs(by - 1) < _WORTH_A_COLOUR:
        return ""
    return "red" if by > 1 else "green"


def _sort_scenarios(scenarios: Iterable[Scenario]) -> list[Scenario]:
    return list(dict.fromkeys(scenarios))
