"""Counters of our processes: event loop lag, and messages, plans, Talos calls, log lines per node."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.bench.figures import Figures

_BUCKET: Final = re.compile(r'^talosccm_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)

Histogram = Counter[float]  # upper bound in seconds -> count, cumulative
_GROUP: Final = "per node: "
_PUBLISHED: Final = re.compile(
    r'^talosccm_published_total\{event="([^"]+)",outcome="published"\} (\S+)$', re.MULTILINE
)
_PLANS: Final = re.compile(
    r'^talosccm_transformer_duration_seconds_count\{type="transformer"\} (\S+)$', re.MULTILINE
)
_WATCH: Final = "Watch"
_MESSAGES, _PLANS_MADE, _LOG_LINES = "... ", "plans of the labeler", "log lines"


def parse_histogram(page: str) -> Histogram:
    """The buckets on a metrics page; empty if it has none."""
    return Counter(
        {float(bound.replace("+Inf", "inf")): int(float(count)) for bound, count in _BUCKET.findall(page)}
    )


def compute_percentile_bound(added: Histogram, percent: float) -> float:
    """The upper bound of the bucket with that percentile; NaN if the histogram is empty."""
    total = added[math.inf]
    if not total:
        return math.nan
    return min(bound for bound, count in added.items() if count >= math.ceil(percent / 100 * total))


def compute_lag_figures(process: str, added: Histogram) -> Figures:
    """The event loop lag of a process: the bound of a bucket, so "at most"."""
    return {
        f"loop lag: {process} {label} at most ms": 1000 * compute_percentile_bound(added, percent)
        for label, percent in (("p99", 99), ("max", 100))
    }


def count_messages(pages: Iterable[str], logs: Iterable[Path]) -> Counter[str]:
    """What our processes have done since their start, by their metrics pages and logs.

    Messages count if they are about objects, by subject without the object name, such as
    "... flow.observed.node". The others, such as the leader's heartbeat, depend on time and not on nodes.
    """
    counts = Counter({_LOG_LINES: sum(log.read_bytes().count(b"\n") for log in logs)})
    for page in pages:
        counts[_PLANS_MADE] += sum(int(float(count)) for count in _PLANS.findall(page))
        for subject, count in _PUBLISHED.findall(page):
            if subject.count(".") >= 2:
                counts[f"{_MESSAGES}{subject}"] += int(float(count))
    return counts


def compute_message_figures(added: Counter[str], talos: Mapping[str, int], nodes: int) -> Figures:
    """What `count_messages` has counted, per node; `talos` are the calls, such as "Get PlatformMetadatas"."""
    messages = {what: count for what, count in sorted(added.items()) if what.startswith(_MESSAGES)}
    streams = sum(count for call, count in talos.items() if call.split()[0] == _WATCH)
    counts = {
        "messages published": sum(messages.values()),
        **messages,
        _PLANS_MADE: added[_PLANS_MADE],
        "Talos calls": sum(talos.values()) - streams,
        "Talos streams": streams,
        _LOG_LINES: added[_LOG_LINES],
    }
    return {f"{_GROUP}{what}": count / nodes for what, count in counts.items()}
