"""Counters of our processes: event loop lag, and messages, plans, Talos calls, log lines per node."""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.bench.figures import Figures

_BUCKET: Final = re.compile(r'^talosccm_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)

Histogram = Mapping[float, float]  # upper bound in seconds -> count, cumulative
_GROUP: Final = "per node: "
_PUBLISHED: Final = re.compile(
    r'^talosccm_published_total\{event="([^"]+)",outcome="published"\} (\S+)$', re.MULTILINE
)
_PLANS: Final = re.compile(
    r'^talosccm_transformer_duration_seconds_count\{type="transformer"\} (\S+)$', re.MULTILINE
)
_WATCH: Final = "Watch"


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


def compute_lag_figures(process: str, added: Histogram) -> Figures:
    """The event loop lag of a process: the bound of a bucket, so "at most"."""
    return {
        f"loop lag: {process} {label} at most ms": 1000 * compute_percentile_bound(added, percent)
        for label, percent in (("p99", 99), ("max", 100))
    }


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of all our processes since their start."""

    published: Mapping[str, float]  # by subject without the object name, such as "flow.observed.node"
    plans: float  # of the labeler
    log_lines: int


def read_message_counts(pages: Iterable[str], logs: Iterable[Path]) -> MessageCounts:
    """Read the counts from metrics pages and logs."""
    every_page = list(pages)
    return MessageCounts(
        published=parse_published(every_page),
        plans=sum(float(count) for page in every_page for count in _PLANS.findall(page)),
        log_lines=sum(log.read_bytes().count(b"\n") for log in logs),
    )


def parse_published(pages: Iterable[str]) -> dict[str, float]:
    """Messages about objects on these metrics pages, by subject without the object name.

    The others, such as the leader's heartbeat, depend on time and not on nodes.
    """
    counts: dict[str, float] = {}
    for page in pages:
        for subject, count in _PUBLISHED.findall(page):
            if subject.count(".") >= 2:
                counts[subject] = counts.get(subject, 0.0) + float(count)
    return counts


def compute_message_figures(
    before: MessageCounts, after: MessageCounts, talos: Mapping[str, int], nodes: int
) -> Figures:
    """The counts per node; `talos` are the calls at the machines, such as "Get PlatformMetadatas"."""
    added = {what: count - before.published.get(what, 0.0) for what, count in after.published.items()}
    streams = sum(count for call, count in talos.items() if call.split()[0] == _WATCH)
    counts = {
        "messages published": sum(added.values()),
        **{f"... {subject}": added[subject] for subject in sorted(added) if added[subject]},
        "plans of the labeler": after.plans - before.plans,
        "Talos calls": sum(talos.values()) - streams,
        "Talos streams": streams,
        "log lines": after.log_lines - before.log_lines,
    }
    return {f"{_GROUP}{what}": count / nodes for what, count in counts.items()}
