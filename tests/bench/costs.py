"""Cost of a measurement: the difference of counters read before and after it, per node."""

import os
import time
from collections import Counter

import msgspec

from libs.testbed.child_process import ChildProcess
from libs.testbed.service_processes import ProcessUsage, measure_process_usage
from tests.bench import event_loop_lag
from tests.bench.bench_cluster import (
    OTHER_CONTROLLER,
    READ_VERBS,
    BenchCluster,
    RunningController,
    is_controller_user,
)
from tests.bench.cpu import APART
from tests.bench.message_counts import MessageCounts

Figures = dict[str, float]

_BENCH = "bench"  # this process: it reads the audit log and prepares the kubelets


class CostReading(msgspec.Struct, frozen=True, kw_only=True):
    """All counters at one moment."""

    at: float
    audit: int
    usage: dict[str, ProcessUsage]
    loop_lag: dict[str, event_loop_lag.Histogram]
    controller: frozenset[str]  # the processes of the controller and its NATS server
    messages: MessageCounts | None  # None without our services


async def read_costs(stage: BenchCluster, controlled: RunningController | None) -> CostReading:
    """Read all counters; without a controller only those of the servers."""
    pages = await controlled.fetch_metrics() if controlled is not None else {}
    return CostReading(
        at=time.monotonic(),
        audit=stage.control_plane.audit_mark(),
        usage=read_usage(stage, controlled),
        loop_lag={name: event_loop_lag.parse_histogram(page) for name, page in pages.items()},
        controller=frozenset(_list_processes(controlled)),
        messages=controlled.read_message_counts(pages) if controlled is not None else None,
    )


def _list_processes(controlled: RunningController | None) -> dict[str, ChildProcess]:
    if controlled is None:
        return {}
    nats = {} if controlled.nats is None else {"nats-server": controlled.nats.child}
    return {**controlled.list_processes(), **nats}


def read_usage(stage: BenchCluster, controlled: RunningController | None) -> dict[str, ProcessUsage]:
    """CPU and memory of every process so far, this one included; sends no request."""
    children = stage.list_servers() | _list_processes(controlled)
    pids = {name: child.pid for name, child in children.items()} | {_BENCH: os.getpid()}
    return {name: measure_process_usage(pid) for name, pid in pids.items()}


def compute_process_figures(before: CostReading, after: CostReading) -> Figures:
    """CPU and peak memory of every process and the event loop lag of ours; a name begins with its group."""
    figures: Figures = {}
    for name, usage in after.usage.items():
        kind = _get_group(name, after)
        figures[f"{kind}: {name} CPU s"] = usage.cpu_seconds - before.usage[name].cpu_seconds
        figures[f"{kind}: {name} peak RSS MB"] = usage.peak_rss_bytes / 1e6
    ours = [name for name in after.usage if name in after.loop_lag]
    if ours:
        figures["ours: all CPU s"] = sum(figures[f"ours: {name} CPU s"] for name in ours)
    figures |= compute_controller_figures(before, after)
    for name, histogram in after.loop_lag.items():
        added = event_loop_lag.subtract_histogram(before.loop_lag[name], histogram)
        for label, percent in (("p99", 99), ("max", 100)):
            figures[f"loop lag: {name} {label} at most ms"] = 1000 * event_loop_lag.compute_percentile_bound(
                added, percent
            )
    return figures


def _get_group(name: str, reading: CostReading) -> str:
    if name in reading.loop_lag:
        return "ours"
    return "other" if name == OTHER_CONTROLLER else "context"


def compute_controller_figures(before: CostReading, after: CostReading) -> Figures:
    """Figures that compare controllers: all its processes and its NATS server together; none without one.

    Everything is that and the control plane, without the parts that exist only in a bench.
    """
    if not after.controller:
        return {}
    spent = {name: usage.cpu_seconds - before.usage[name].cpu_seconds for name, usage in after.usage.items()}
    return {
        "controller: CPU s": sum(spent[name] for name in after.controller),
        "controller: CPU of everything s": sum(s for name, s in spent.items() if name not in APART),
        "controller: peak RSS MB": sum(after.usage[name].peak_rss_bytes for name in after.controller) / 1e6,
    }


def count_requests(stage: BenchCluster, since: int) -> Counter[str]:
    """Requests of the controller to Kubernetes since a mark: "patch nodes", "patch nodes (refused)"."""
    counts: Counter[str] = Counter()
    for request, count in stage.control_plane.audit_counts(since).items():
        if is_controller_user(request.user):
            refused = "" if request.succeeded else " (refused)"
            counts[f"{request.verb} {request.resource}{refused}"] += count
    return counts


async def count_calls(stage: BenchCluster) -> Counter[str]:
    """Calls of the controller to Talos since the last reset: "Get PlatformMetadatas.talos.dev"."""
    counts: Counter[str] = Counter()
    for call, count in (await stage.machines.count_calls()).items():
        counts[f"{call.method} {call.type.partition('.')[0]}".strip()] += count
    return counts


def is_lease_request(request: str) -> bool:
    """Whether the request concerns a leader's Lease, whose number depends on time and not on nodes."""
    return " leases" in request


def is_write_request(request: str) -> bool:
    """Whether the request is a write."""
    return request.split(maxsplit=1)[0] not in READ_VERBS


def compute_per_node(kind: str, counts: Counter[str], nodes: int) -> Figures:
    """Figures "<kind>: <what> per node" and their sum, without requests for Leases."""
    counted = {what: count for what, count in sorted(counts.items()) if not is_lease_request(what)}
    figures = {f"{kind}: {what} per node": count / nodes for what, count in counted.items()}
    return {f"{kind}: all per node": sum(counted.values()) / nodes} | figures
