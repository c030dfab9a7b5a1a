"""Event loop lag of our services, from the histogram on their metrics pages. Pure."""

import math
import re
from collections.abc import Mapping
from typing import Final

_BUCKET: Final = re.compile(r'^talosccm_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)

Histogram = Mapping[float, float]  # upper bound in seconds -> count, cumulative


def parse_histogram(page: str) -> Histogram:
    """The buckets on a metrics page; empty if it has none."""
    return {float(bound.replace("+Inf", "inf")): float(count) for bound, count in _BUCKET.findall(page)}


def subtract_histogram(before: Histogram, after: Histogram) -> Histogram:
    """The counts that were added between the two readings."""
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def compute_percentile_bound(added: Histogram, percent: float) -> float:
    """The upper bound of the bucket with that percentile; NaN if the histogram is empty."""
    total = added.get(math.inf, 0.0)
    if not total:
        return math.nan
    return min(bound for bound, count in added.items() if count >= math.ceil(percent / 100 * total))
