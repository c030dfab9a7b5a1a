"""Our services in relation to the other controller: the median of each figure and of the ratios. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from tests.bench.bench_options import AGAINST_MODES, Mode, Scenario
from tests.bench.figures import BenchRun, FigureSummary, compute_ratio

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


class RatioRow(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: the medians of both, and the ratio of ours to the other's over the pairs of runs."""

    title: str
    other: float
    ours: float
    ratio: FigureSummary


class Pairing(NamedTuple):
    """A mode of ours, and one of the other controller."""

    ours: Mode
    other: Mode


def compare_with_other(runs: Sequence[BenchRun]) -> dict[Pairing, list[RatioRow]]:
    """The compared figures of each pair of modes; a pair of runs has the same number.

    Pairs of runs are minutes apart, so the median of their ratios varies less than the ratio of medians.
    """
    modes = dict.fromkeys(run.mode for run in runs)
    pairings = [
        Pairing(mode, other)
        for other in modes
        if other in AGAINST_MODES
        for mode in modes
        if mode not in AGAINST_MODES
    ]
    rows = {pairing: list(_compare(runs, pairing)) for pairing in pairings}
    return {pairing: found for pairing, found in rows.items() if found}


def _compare(runs: Sequence[BenchRun], pairing: Pairing) -> Iterable[RatioRow]:
    for scenario, figure, title in _COMPARED:
        ours, other = (_find_values(runs, scenario, mode, figure) for mode in pairing)
        ratios = [compute_ratio(ours[number], other[number]) for number in ours if other.get(number)]
        if ratios:
            yield RatioRow(
                title=title,
                other=statistics.median(other.values()),
                ours=statistics.median(ours.values()),
                ratio=FigureSummary(statistics.median(ratios), min(ratios), max(ratios)),
            )


def _find_values(runs: Iterable[BenchRun], scenario: Scenario, mode: Mode, figure: str) -> dict[int, float]:
    """The figure by run number; runs in which it is missing or NaN are left out."""
    found = {
        run.number: run.figures.get(figure) for run in runs if (run.scenario, run.mode) == (scenario, mode)
    }
    return {number: value for number, value in found.items() if value is not None and value == value}  # noqa: PLR0124
