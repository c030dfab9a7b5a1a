"""Figures of runs, with the unit in each name; their summary, and ratios to another controller. Pure."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from libs.testbed.kubelets_in_go import GoCertificateRequest, GoNodeJoin
from tests.bench.options import Mode, Scenario

Figures = dict[str, float]


class Promise(NamedTuple):
    """The most that a figure may be."""

    most: float
    least_count: int = 1  # of nodes or requests: with fewer, the figure measures latency and not throughput


# By figure. A promise counts in each scenario that has its figure.
PROMISES: Final[Mapping[str, Promise]] = {
    "never untainted": Promise(0),
    "never issued": Promise(0),
    "never with pod CIDRs": Promise(0),
    "never shown": Promise(0),
    "never applied": Promise(0),
    "all applied s": Promise(15),
    "issued / approve everything": Promise(2, least_count=1000),
    "pod CIDRs: ConfigMap writes per node": Promise(0.1, least_count=1000),
    "pod CIDRs: given twice": Promise(0),
    "pod CIDRs: nodes without both families": Promise(0),
    "Kubernetes: writes": Promise(0),
    "Kubernetes: writes per changed node": Promise(2),
    "Kubernetes: all but lists and watches per request": Promise(1),
}


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a scenario in one mode."""

    scenario: Scenario
    mode: Mode
    number: int
    figures: Figures
    problems: tuple[str, ...] = ()  # promises that did not hold


class FigureSummary(msgspec.Struct, frozen=True):
    """A figure over all runs."""

    median: float
    least: float
    most: float


def compute_percentile(values: Iterable[float], percent: float) -> float:
    """The percentile by nearest rank; NaN without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else math.nan


def compute_times(
    what: str, spans: Iterable[tuple[float, float]], begun: float, *, prefix: str = "", each: str = ""
) -> Figures:
    """Seconds from `begun` until the last span has ended, and percentiles of each in milliseconds.

    The end of a span that never ended is 0. Those spans are only counted.
    """
    every = list(spans)
    ended = [(start, end) for start, end in every if end]
    took = [end - start for start, end in ended]
    return {
        f"{prefix}all {what} s": max((end for _, end in ended), default=math.nan) - begun,
        f"{prefix}{each or what} p50 ms": 1000 * compute_percentile(took, 50),
        f"{prefix}{each or what} p99 ms": 1000 * compute_percentile(took, 99),
        f"{prefix}never {what}": float(len(every) - len(took)),
    }


def compute_node_times(
    what: str, nodes: Sequence[GoNodeJoin], end: Callable[[GoNodeJoin], float], prefix: str = ""
) -> Figures:
    """Times of nodes that started to join together, until the end of each."""
    return compute_times(what, ((node.begun, end(node)) for node in nodes), find_begin(nodes), prefix=prefix)


def compute_issued_figures(
    requests: Sequence[GoCertificateRequest], begun: float, prefix: str = ""
) -> Figures:
    """Certificates: seconds from `begun` until the last is issued, percentiles of each since it was filed.

    The time until approval is the approver's part, the rest the signer's.
    """
    issued = [request for request in requests if request.issued]
    approved = (request.approved - request.filed for request in issued)
    signed = (request.issued - request.approved for request in issued)
    spans = ((request.filed, request.issued) for request in requests)
    return compute_times("issued", spans, begun, prefix=prefix, each="filed to issued") | {
        f"{prefix}filed to approved p50 ms": 1000 * compute_percentile(approved, 50),
        f"{prefix}approved to issued p50 ms": 1000 * compute_percentile(signed, 50),
    }


def find_begin(spans: Iterable[GoNodeJoin | GoCertificateRequest]) -> float:
    """When the first of these joins or requests began."""
    return min(span.begun for span in spans)


def list_broken(figures: Figures, count: int) -> list[str]:
    """The promises that did not hold among `count` nodes or requests."""
    return [
        f"{name}: {figures[name]:g}, and at most {promise.most:g} is promised"
        for name, promise in PROMISES.items()
        if count >= promise.least_count and figures.get(name, 0.0) > promise.most
    ]


def summarize_runs(runs: Iterable[BenchRun]) -> dict[tuple[Scenario, Mode], dict[str, FigureSummary]]:
    """Median, minimum and maximum of each figure over the runs that have it, in the order of the runs."""
    gathered: dict[tuple[Scenario, Mode], dict[str, list[float]]] = {}
    for run in runs:
        of_runs = gathered.setdefault((run.scenario, run.mode), {})
        for name, value in run.figures.items():
            of_runs.setdefault(name, []).append(value)
    return {
        which: {name: summarize(values) for name, values in figures.items()}
        for which, figures in gathered.items()
    }


def summarize(values: list[float]) -> FigureSummary:
    """Median, minimum and maximum."""
    return FigureSummary(statistics.median(values), min(values), max(values))


def compute_ratio(one: float, other: float) -> float:
    """`one` divided by `other`; NaN if `other` is 0."""
    return one / other if other else math.nan


def list_values(runs: Iterable[BenchRun], scenario: Scenario, mode: Mode, figure: str) -> dict[int, float]:
    """The figure by the number of the run, of those runs that have it."""
    return {
        run.number: run.figures[figure]
        for run in runs
        if (run.scenario, run.mode) == (scenario, mode) and figure in run.figures
    }


def compute_ratios(ours: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """The ratio of each pair of runs, which have the same number.

    Pairs of runs are minutes apart, so the median of their ratios varies less than the ratio of medians.
    """
    return [value / other[number] for number, value in ours.items() if other.get(number)]
