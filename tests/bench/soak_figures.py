"""What a soak samples each simulated hour, the growth over the hours, and its verdict. Pure."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, combinations, groupby, pairwise
from typing import Final

import msgspec

from tests.bench import metrics
from tests.bench.figures import Figures

# The first hours of a process fill caches, pools and the allocator's arenas.
WARM_UP_HOURS: Final = 4
_SHORT: Final = f"{WARM_UP_HOURS + 1} hours"  # the longest time that shows no growth
_HOURS_PER_DAY: Final = 24
# Promised over a simulated day. Memory of CPython moves by a percent from one hour to the next.
_MOST_MEMORY_GROWTH: Final = 0.03
# A count may move by one at any hour, for example while a connection is replaced.
_MOST_COUNT_GROWTH: Final = 0.05
_MOST_COUNT_NOISE: Final = 2.0
_MOST_LAG_SECONDS: Final = 0.1  # promised, of the event loop at p99
# The stream keeps messages about deleted objects for an hour, which is long in simulated hours.
_GROWS: Final = "NATS subjects"


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """One process at the end of a simulated hour, when it is idle."""

    pid: int  # another one after a restart
    rss_bytes: int
    files: int  # open file descriptors, sockets included
    tasks: int  # of asyncio
    threads: int


class HourSample(msgspec.Struct, frozen=True, kw_only=True):
    """All processes of ours, and what the cluster and the NATS server keep for them."""

    processes: Mapping[str, ProcessSample]
    kept: Mapping[str, int]  # such as "NATS consumers"
    loop_lag: Mapping[str, metrics.Histogram] = {}  # of each process since its start


def compute_slope(*lives: Sequence[float]) -> float:
    """The growth per hour: the median of the slopes of all pairs (Theil-Sen), which outliers do not move.

    Both values of a pair are of one life of a process. NaN if no life has two values.
    """
    slopes = [
        (late - early) / (j - i)
        for values in lives
        for (i, early), (j, late) in combinations(enumerate(values), 2)
    ]
    return statistics.median(slopes) if slopes else math.nan


def compute_soak_figures(samples: Sequence[HourSample]) -> Figures:
    """The last value of each count and its growth over a simulated day, without the first hours."""
    later = samples[WARM_UP_HOURS:]
    figures: Figures = {"simulated hours": float(len(samples))}
    for name in samples[-1].processes:
        lives = _list_lives(samples, name)
        last = samples[-1].processes[name]
        rss = [[sample.rss_bytes / 1e6 for sample in life] for life in lives]
        figures |= _describe(f"ours: {name} RSS MB", last.rss_bytes / 1e6, *rss)
        for what in ("files", "tasks", "threads"):
            counts = [[getattr(sample, what) for sample in life] for life in lives]
            figures |= _describe(f"ours: {name} {what}", getattr(last, what), *counts)
    for what in samples[-1].kept:
        kept = [sample.kept[what] for sample in later]
        figures |= _describe(f"context: {what}", samples[-1].kept[what], kept)
    for name, added in _add_lags(later).items():
        figures |= metrics.compute_lag_figures(name, added)
    return figures


def count_restarts(restarts: Sequence[str]) -> Figures:
    """How often each process ended and was started again; `restarts` has a name for each time."""
    counts = {f"ours: {name} restarts": float(count) for name, count in sorted(Counter(restarts).items())}
    return {"processes ended": float(len(restarts))} | counts


def _list_lives(samples: Sequence[HourSample], name: str) -> list[list[ProcessSample]]:
    """The samples of a process from one start to the next, each without its first hours."""
    of_process = [sample.processes[name] for sample in samples]
    return [list(life)[WARM_UP_HOURS:] for _, life in groupby(of_process, key=lambda sample: sample.pid)]


def _add_lags(samples: Sequence[HourSample]) -> Mapping[str, metrics.Histogram]:
    """The lag of each process over these hours; one that started again counts from zero."""
    sums: dict[str, dict[float, float]] = {}
    for before, after in pairwise(samples):
        for name, histogram in after.loop_lag.items():
            start = before.loop_lag.get(name, {})
            if histogram.get(math.inf, 0.0) < start.get(math.inf, 0.0):
                start = {}
            added = metrics.subtract_histogram(start, histogram)
            known = sums.setdefault(name, {})
            sums[name] = {bound: known.get(bound, 0.0) + count for bound, count in added.items()}
    return sums


def _describe(name: str, last: float, *lives: Sequence[float]) -> Figures:
    return {name: last, f"{name}, growth per day": compute_slope(*lives) * _HOURS_PER_DAY}


def find_soak_problems(samples: Sequence[HourSample]) -> list[str]:
    """What grew by more than is promised."""
    later = samples[WARM_UP_HOURS:]
    if len(later) < 2:
        return [f"a soak needs more than {_SHORT} to show growth"]
    found = []
    for name in samples[-1].processes:
        lives = _list_lives(samples, name)
        if all(len(life) < 2 for life in lives):
            found.append(f"{name} restarted so often that it never ran for more than {_SHORT}")
            continue
        rss = [[float(sample.rss_bytes) for sample in life] for life in lives]
        growth = compute_slope(*rss) * _HOURS_PER_DAY
        if growth > _MOST_MEMORY_GROWTH * statistics.median(chain(*rss)):
            found.append(f"the memory of {name} grows by {growth / 1e6:.1f} MB per simulated day")
        for what in ("files", "tasks", "threads"):
            counts = [[getattr(sample, what) for sample in life] for life in lives]
            found += _find_growth(f"{what} of {name}", *counts)
    for name, added in _add_lags(later).items():
        lag = metrics.compute_percentile_bound(added, 99)
        if lag > _MOST_LAG_SECONDS:
            found.append(f"the event loop of {name} lags by up to {1000 * lag:.0f} ms (p99)")
    for what in samples[-1].kept.keys() - {_GROWS}:
        found += _find_growth(what, [sample.kept[what] for sample in later])
    return found


def _find_growth(what: str, *lives: Sequence[int]) -> list[str]:
    growth = compute_slope(*lives) * _HOURS_PER_DAY
    counts = list(chain(*lives))
    if growth <= max(_MOST_COUNT_NOISE, _MOST_COUNT_GROWTH * statistics.median(counts)):
        return []
    return [f"{what} grow by {growth:.0f} per simulated day, to {counts[-1]}"]
