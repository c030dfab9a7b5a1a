"""What something cost: counters are read before and after, and the difference is told per node."""

import asyncio
import os
import time
from collections import Counter

import msgspec

from bench import lag
from bench.stage import Controlled, Stage, is_ours
from libs.testbed.running_services import Usage, usage_of

Figures = dict[str, float]

_BENCH = "bench"  # the process that measures: it reads the audit log, and hands kubelets what they write


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """All counters at one moment."""

    at: float
    audit: int
    usage: dict[str, Usage]
    lag: dict[str, lag.Histogram]


async def read(stage: Stage, controlled: Controlled | None) -> Reading:
    """Read all counters; without services only those of the servers."""
    pages: dict[str, str] = {}
    if controlled is not None:
        names = list(controlled.children())
        said = await asyncio.gather(*(controlled.services.page(name, "/metrics") for name in names))
        pages = dict(zip(names, said, strict=True))
    return Reading(
        at=time.monotonic(),
        audit=stage.control_plane.audit_mark(),
        usage=usage(stage, controlled),
        lag={name: lag.histogram(page) for name, page in pages.items()},
    )


def usage(stage: Stage, controlled: Controlled | None) -> dict[str, Usage]:
    """What every process has cost so far, this one too; nobody is asked for it."""
    children = dict(stage.servers())
    if controlled is not None:
        children |= controlled.children()
        if controlled.nats is not None:
            children["nats-server"] = controlled.nats.child
    pids = {name: child.pid for name, child in children.items()} | {_BENCH: os.getpid()}
    return {name: usage_of(pid) for name, pid in pids.items()}


def process_figures(before: Reading, after: Reading) -> Figures:
    """CPU and peak memory of every process, lateness of our loops. Names begin with what they belong to."""
    figures: Figures = {}
    for name, usage in after.usage.items():
        kind = "ours" if name in after.lag else "context"
        figures[f"{kind}: {name} CPU s"] = usage.cpu_seconds - before.usage[name].cpu_seconds
        figures[f"{kind}: {name} peak RSS MB"] = usage.peak_rss_bytes / 1e6
    ours = [name for name in after.usage if name in after.lag]
    if ours:
        figures["ours: all CPU s"] = sum(figures[f"ours: {name} CPU s"] for name in ours)
    for name, histogram in after.lag.items():
        added = lag.between(before.lag[name], histogram)
        for label, percent in (("p99", 99), ("max", 100)):
            figures[f"loop lag: {name} {label} at most ms"] = 1000 * lag.at_most(added, percent)
    return figures


def requests(stage: Stage, since: int) -> Counter[str]:
    """What our services asked Kubernetes for since a mark: "patch nodes", "patch nodes (refused)"."""
    counts: Counter[str] = Counter()
    for request, count in stage.control_plane.audit_counts(since).items():
        if is_ours(request.user):
            refused = "" if request.succeeded else " (refused)"
            counts[f"{request.verb} {request.resource}{refused}"] += count
    return counts


async def calls(stage: Stage) -> Counter[str]:
    """What our services asked Talos for since the last reset: "Get PlatformMetadatas.talos.dev"."""
    counts: Counter[str] = Counter()
    for call, count in (await stage.machines.calls()).items():
        counts[f"{call.method} {call.type.partition('.')[0]}".strip()] += count
    return counts


def is_lease(request: str) -> bool:
    """Whether the request is about the leader's Lease: it comes with time, not with nodes."""
    return " leases" in request


def is_write(request: str) -> bool:
    """Whether the request changes something if it is granted."""
    return request.split(maxsplit=1)[0] not in {"get", "list", "watch"}


def per_node(kind: str, counts: Counter[str], nodes: int) -> Figures:
    """Figures "<kind>: <what> per node" and their sum, the Lease left out."""
    counted = {what: count for what, count in sorted(counts.items()) if not is_lease(what)}
    figures = {f"{kind}: {what} per node": count / nodes for what, count in counted.items()}
    return {f"{kind}: all per node": sum(counted.values()) / nodes} | figures
