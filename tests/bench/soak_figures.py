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
_GROWS: Final = "context: NATS subjects"
_MEMORY: Final = " MB"  # the end of a figure


class HourSample(msgspec.Struct, frozen=True, kw_only=True):
    """All processes of ours at the end of a simulated hour, when they are idle."""

    figures: Figures  # such as "ours: ipam RSS MB", "ours: ipam tasks", "context: NATS consumers"
    loop_lag: Mapping[str, metrics.Histogram] = {}  # of each process since its start


def compute_slope(values: Sequence[float]) -> float:
    """The growth per hour: the median of the slopes of all pairs (Theil-Sen), which outliers do not move."""
    slopes = [(late - early) / (j - i) for (i, early), (j, late) in combinations(enumerate(values), 2)]
    return statistics.median(slopes) if slopes else math.nan


def compute_soak_figures(samples: Sequence[HourSample]) -> Figures:
    """The last value of each figure and its growth over a simulated day, without the first hours."""
    later = samples[WARM_UP_HOURS:]
    figures: Figures = {"simulated hours": float(len(samples))}
    for name, last in samples[-1].figures.items():
        figures[name] = last
        figures[f"{name}, growth per day"] = _compute_growth([sample.figures[name] for sample in later])
    for name, added in _subtract_lags(later).items():
        figures |= metrics.compute_lag_figures(name, added)
    return figures


def _compute_growth(values: Sequence[float]) -> float:
    return compute_slope(values) * _HOURS_PER_DAY


def _subtract_lags(later: Sequence[HourSample]) -> Mapping[str, metrics.Histogram]:
    """The lag of each process over these hours."""
    if not later:
        return {}
    return {name: last - later[0].loop_lag[name] for name, last in later[-1].loop_lag.items()}


def find_soak_problems(samples: Sequence[HourSample]) -> list[str]:
    """What grew by more than is promised."""
    later = samples[WARM_UP_HOURS:]
    if len(later) < 2:
        return [f"a soak needs more than {WARM_UP_HOURS + 1} hours to show growth"]
    found = []
    for name, last in samples[-1].figures.items():
        values = [sample.figures[name] for sample in later]
        growth, usual = _compute_growth(values), statistics.median(values)
        is_memory = name.endswith(_MEMORY)
        most = (
            _MOST_MEMORY_GROWTH * usual if is_memory else max(_MOST_COUNT_NOISE, _MOST_COUNT_GROWTH * usual)
        )
        if growth > most and name != _GROWS:
            found.append(f"{name} grows by {growth:.1f} per simulated day, to {last:.0f}")
    for name, added in _subtract_lags(later).items():
        lag = metrics.compute_percentile_bound(added, 99)
        if lag > _MOST_LAG_SECONDS:
            found.append(f"the event loop of {name} lags by up to {1000 * lag:.0f} ms (p99)")
    return found
