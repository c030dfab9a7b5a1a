"""Figures of one run, with the unit in each name, and their summary over several runs. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping

import msgspec

from libs.testbed.kubelets_in_go import GoCertificateRequest, GoNodeJoin
from tests.bench.bench_options import Mode, Scenario

Figures = dict[str, float]


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


def compute_join_figures(nodes: Iterable[GoNodeJoin], prefix: str = "") -> Figures:
    """Joins that started together: seconds until the last has joined, percentiles of each in milliseconds."""
    came = list(nodes)
    begun = min(node.begun for node in came)
    return {
        f"{prefix}all joined s": max(node.joined for node in came) - begun,
        f"{prefix}joined p50 ms": 1000 * compute_percentile((node.joined - node.begun for node in came), 50),
        f"{prefix}joined p99 ms": 1000 * compute_percentile((node.joined - node.begun for node in came), 99),
    }


def compute_untainted_figures(nodes: Iterable[GoNodeJoin]) -> Figures:
    """The same until the taint is removed; nodes that kept it are only counted."""
    came = list(nodes)
    usable = [node for node in came if node.untainted]
    begun = min(node.begun for node in came)
    took = [node.untainted - node.begun for node in usable]
    return {
        "all untainted s": max((node.untainted for node in usable), default=math.nan) - begun,
        "untainted p50 ms": 1000 * compute_percentile(took, 50),
        "untainted p99 ms": 1000 * compute_percentile(took, 99),
        "never untainted": float(len(came) - len(usable)),
    }


def compute_issued_figures(
    requests: Iterable[GoCertificateRequest], begun: float, prefix: str = ""
) -> Figures:
    """Certificates: seconds from `begun` until the last is issued, percentiles of each since it was filed.

    The time until approval is the approver's part, the rest the signer's.
    """
    filed = list(requests)
    issued = [request for request in filed if request.issued]
    took = [request.issued - request.filed for request in issued]
    approved = [request.approved - request.filed for request in issued]
    signed = [request.issued - request.approved for request in issued]
    return {
        f"{prefix}all issued s": max((request.issued for request in issued), default=math.nan) - begun,
        f"{prefix}filed to issued p50 ms": 1000 * compute_percentile(took, 50),
        f"{prefix}filed to issued p99 ms": 1000 * compute_percentile(took, 99),
        f"{prefix}filed to approved p50 ms": 1000 * compute_percentile(approved, 50),
        f"{prefix}approved to issued p50 ms": 1000 * compute_percentile(signed, 50),
        f"{prefix}never issued": float(len(filed) - len(issued)),
    }


def summarize_runs(runs: Iterable[BenchRun]) -> dict[tuple[Scenario, Mode], dict[str, FigureSummary]]:
    """Median, minimum and maximum of each figure over the runs that have it, in the order of the runs."""
    gathered: dict[tuple[Scenario, Mode], dict[str, list[float]]] = {}
    for run in runs:
        of_runs = gathered.setdefault((run.scenario, run.mode), {})
        for name, value in run.figures.items():
            if not math.isnan(value):
                of_runs.setdefault(name, []).append(value)
    return {
        which: {name: _summarize(values) for name, values in figures.items()}
        for which, figures in gathered.items()
    }


def _summarize(values: list[float]) -> FigureSummary:
    return FigureSummary(statistics.median(values), min(values), max(values))


def compute_ratio(one: float, other: float) -> float:
    """`one` divided by `other`; NaN if `other` is 0."""
    return one / other if other else math.nan


def scale_figures(figures: Mapping[str, float], factor: float) -> Figures:
    """Every figure, multiplied by the factor."""
    return {name: value * factor for name, value in figures.items()}
