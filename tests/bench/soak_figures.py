"""What a soak samples each simulated hour, the growth over the hours, and its verdict. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec

from tests.bench import metrics
from tests.bench.figures import Figures

# The first hours of a process fill caches, pools and the allocator's arenas.
WARM_UP_HOURS: Final = 4
_HOURS_PER_DAY: Final = 24
# Promised over a simulated day. Memory of CPython moves by a percent from one hour to the next.
_MOST_MEMORY_GROWTH: Final = 0.03
# A count may move by one at any hour, for example while a connection is replaced.
_MOST_COUNT_GROWTH: Final = 0.05
_MOST_COUNT_NOISE: Final = 2.0
_MOST_LAG_SECONDS: Final = 0.1  # promised, of the event loop at p99
# The stream keeps messages about deleted objects for an hour, which is long in simulated hours.
_GROWS: Final = "NATS subjects"
_COUNTS: Final = ("files", "tasks", "threads")


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """One process at the end of a simulated hour, when it is idle."""

    rss_bytes: int
    files: int  # open file descriptors, sockets included
    tasks: int  # of asyncio
    threads: int


class HourSample(msgspec.Struct, frozen=True, kw_only=True):
    """All processes of ours, and what the cluster and the NATS server keep for them."""

    processes: Mapping[str, ProcessSample]
    kept: Mapping[str, int]  # such as "NATS consumers"
    loop_lag: Mapping[str, metrics.Histogram] = {}  # of each process since its start


def compute_slope(values: Sequence[float]) -> float:
    """The growth per hour: the median of the slopes of all pairs (Theil-Sen), which outliers do not move."""
    slopes = [(late - early) / (j - i) for (i, early), (j, late) in combinations(enumerate(values), 2)]
    return statistics.median(slopes) if slopes else math.nan


def compute_soak_figures(samples: Sequence[HourSample]) -> Figures:
    """The last value of each count and its growth over a simulated day, without the first hours."""
    later = samples[WARM_UP_HOURS:]
    figures: Figures = {"simulated hours": float(len(samples))}
    for name, last in samples[-1].processes.items():
        rss = [sample.processes[name].rss_bytes / 1e6 for sample in later]
        figures |= _describe(f"ours: {name} RSS MB", last.rss_bytes / 1e6, rss)
        for what in _COUNTS:
            counts = [getattr(sample.processes[name], what) for sample in later]
            figures |= _describe(f"ours: {name} {what}", getattr(last, what), counts)
    for what, count in samples[-1].kept.items():
        figures |= _describe(f"context: {what}", count, [sample.kept[what] for sample in later])
    for name, added in _subtract_lags(later).items():
        figures |= metrics.compute_lag_figures(name, added)
    return figures


def _describe(name: str, last: float, values: Sequence[float]) -> Figures:
    return {name: last, f"{name}, growth per day": compute_slope(values) * _HOURS_PER_DAY}


def _subtract_lags(later: Sequence[HourSample]) -> Mapping[str, metrics.Histogram]:
    """The lag of each process over these hours."""
    if not later:
        return {}
    first = later[0].loop_lag
    return {
        name: metrics.subtract_histogram(first.get(name, {}), histogram)
        for name, histogram in later[-1].loop_lag.items()
    }


def find_soak_problems(samples: Sequence[HourSample]) -> list[str]:
    """What grew by more than is promised."""
    later = samples[WARM_UP_HOURS:]
    if len(later) < 2:
        return [f"a soak needs more than {WARM_UP_HOURS + 1} hours to show growth"]
    found = []
    for name in samples[-1].processes:
        rss = [float(sample.processes[name].rss_bytes) for sample in later]
        growth = compute_slope(rss) * _HOURS_PER_DAY
        if growth > _MOST_MEMORY_GROWTH * statistics.median(rss):
            found.append(f"the memory of {name} grows by {growth / 1e6:.1f} MB per simulated day")
        for what in _COUNTS:
            counts = [getattr(sample.processes[name], what) for sample in later]
            found += _find_growth(f"{what} of {name}", counts)
    for name, added in _subtract_lags(later).items():
        lag = metrics.compute_percentile_bound(added, 99)
        if lag > _MOST_LAG_SECONDS:
            found.append(f"the event loop of {name} lags by up to {1000 * lag:.0f} ms (p99)")
    for what in samples[-1].kept.keys() - {_GROWS}:
        found += _find_growth(what, [sample.kept[what] for sample in later])
    return found


def _find_growth(what: str, counts: Sequence[int]) -> list[str]:
    growth = compute_slope(counts) * _HOURS_PER_DAY
    if growth <= max(_MOST_COUNT_NOISE, _MOST_COUNT_GROWTH * statistics.median(counts)):
        return []
    return [f"{what} grow by {growth:.0f} per simulated day, to {counts[-1]}"]
