"""How late our event loops were, from the histogram that every service serves. Pure."""

import math
import re
from collections.abc import Mapping
from typing import Final

_BUCKET: Final = re.compile(r'^talosccm_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)

Histogram = Mapping[float, float]  # upper bound in seconds -> how many were at most so late


def parse_histogram(page: str) -> Histogram:
    """The buckets on a metrics page; empty if it has none."""
    return {float(bound.replace("+Inf", "inf")): float(count) for bound, count in _BUCKET.findall(page)}


def subtract_histogram(before: Histogram, after: Histogram) -> Histogram:
    """What was added."""
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def compute_percentile_bound(added: Histogram, percent: float) -> float:
    """The bound of the bucket that holds that percentile: it was at most so late. NaN of nothing."""
    total = added.get(math.inf, 0.0)
    if not total:
        return math.nan
    return min(bound for bound, count in added.items() if count >= math.ceil(percent / 100 * total))
