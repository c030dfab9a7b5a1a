"""Cost of a measurement: the difference of counters read before and after it, per node."""

import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec
from msgspec import field

from libs.testbed.service_processes import ProcessUsage, measure_process_usage
from tests.bench import metrics
from tests.bench.bench_cluster import (
    OTHER_CONTROLLER,
    READ_VERBS,
    BenchCluster,
    BenchServices,
    is_controller_user,
    wait_until_quiet,
)
from tests.bench.figures import Figures
from tests.bench.other_controller import OtherController

_BENCH: Final = "bench"  # this process: it reads the audit log and prepares the kubelets
_APART: Final = ("kubelets", "machines", _BENCH)  # neither servers of the cluster nor our services

Controller = BenchServices | OtherController


class CostReading(msgspec.Struct, frozen=True, kw_only=True):
    """All counters at one moment."""

    audit: int
    usage: Mapping[str, ProcessUsage]
    loop_lag: Mapping[str, metrics.Histogram]
    controller: frozenset[str]  # the processes of the controller and its NATS server
    messages: Counter[str]  # see `count_messages`; empty without our services


class Costs(msgspec.Struct, kw_only=True):
    """The cost of a block, complete when it has ended."""

    settled: bool  # whether the controller was idle before the block, and after it
    requests: Counter[str] = field(
        default_factory=Counter
    )  # of the controller to Kubernetes: see `count_requests`
    calls: Counter[str] = field(default_factory=Counter)  # to Talos: "Get PlatformMetadatas"
    messages: Counter[str] = field(default_factory=Counter)
    figures: Figures = {}  # of the processes

    @property
    def problems(self) -> list[str]:
        """What makes the cost one of something else, too."""
        return [] if self.settled else ["the controller was not idle before what was measured, or after it"]

    def compute_figures(self, count: int, per: str = "node") -> Figures:
        """Requests and calls per node (or whatever is counted), and the cost of the processes."""
        figures = (
            compute_per("Kubernetes", self.requests, count, per)
            | compute_per("Talos", self.calls, count, per)
            | self.figures
        )
        if "ours: all CPU s" in figures:
            figures[f"ours: CPU per {per} ms"] = 1000 * figures["ours: all CPU s"] / count
        return figures


@contextlib.asynccontextmanager
async def measure_costs(
    stage: BenchCluster, controlled: Controller, *, seconds: float = 20
) -> AsyncIterator[Costs]:
    """Measure the cost of the block until the controller is quiet, which it also is before it."""
    costs = Costs(settled=await wait_until_quiet(stage, seconds=seconds))
    await stage.machines.reset_calls()
    before = await read_costs(stage, controlled)
    yield costs
    costs.settled = await wait_until_quiet(stage) and costs.settled
    after = await read_costs(stage, controlled)
    costs.requests = count_requests(stage, before.audit)
    for call, count in (await stage.machines.count_calls()).items():
        costs.calls[f"{call.method} {call.type.partition('.')[0]}".strip()] += count
    costs.messages = after.messages - before.messages
    costs.figures = compute_process_figures(before, after)


async def read_costs(stage: BenchCluster, controlled: Controller | None) -> CostReading:
    """Read all counters; without a controller only those of the servers."""
    ours = controlled if isinstance(controlled, BenchServices) else None
    pages = await ours.fetch_metrics() if ours else {}
    return CostReading(
        audit=stage.control_plane.audit_mark(),
        usage=read_usage(stage, controlled),
        loop_lag={name: metrics.parse_histogram(page) for name, page in pages.items()},
        controller=frozenset(controlled.list_processes() if controlled else ()),
        messages=ours.count_messages(pages) if ours else Counter(),
    )


def read_usage(stage: BenchCluster, controlled: Controller | None) -> dict[str, ProcessUsage]:
    """CPU and memory of every process so far, this one included; sends no request."""
    children = stage.list_servers() | (controlled.list_processes() if controlled else {})
    pids = {name: child.pid for name, child in children.items()} | {_BENCH: os.getpid()}
    return {name: measure_process_usage(pid) for name, pid in pids.items()}


def compute_process_figures(before: CostReading, after: CostReading) -> Figures:
    """CPU and peak memory of every process and the event loop lag of ours; a name begins with its group.

    The controller is all its processes and its NATS server together. Everything is that and the control
    plane, without the parts that exist only in a bench.
    """
    figures: Figures = {}
    spent = {name: usage.cpu_seconds - before.usage[name].cpu_seconds for name, usage in after.usage.items()}
    for name, seconds in spent.items():
        kind = "ours" if name in after.loop_lag else "other" if name == OTHER_CONTROLLER else "context"
        figures[f"{kind}: {name} CPU s"] = seconds
        figures[f"{kind}: {name} peak RSS MB"] = after.usage[name].peak_rss_bytes / 1e6
    if after.loop_lag:
        figures["ours: all CPU s"] = sum(spent[name] for name in after.loop_lag)
    if after.controller:
        peaks = sum(after.usage[name].peak_rss_bytes for name in after.controller)
        figures |= {
            "controller: CPU s": sum(spent[name] for name in after.controller),
            "controller: CPU of everything s": sum(s for name, s in spent.items() if name not in _APART),
            "controller: peak RSS MB": peaks / 1e6,
        }
    for name, histogram in after.loop_lag.items():
        figures |= metrics.compute_lag_figures(name, histogram - before.loop_lag[name])
    return figures


def count_requests(stage: BenchCluster, since: int) -> Counter[str]:
    """Requests of the controller to Kubernetes since a mark: "patch nodes", "patch nodes (refused)"."""
    counts: Counter[str] = Counter()
    for request, count in stage.control_plane.audit_counts(since).items():
        if is_controller_user(request.user):
            refused = "" if request.succeeded else " (refused)"
            counts[f"{request.verb} {request.resource}{refused}"] += count
    return counts


def is_lease_request(request: str) -> bool:
    """Whether the request concerns a leader's Lease, whose number depends on time and not on nodes."""
    return " leases" in request


def is_write_request(request: str) -> bool:
    """Whether the request is a write, and not of a Lease."""
    return request.split(maxsplit=1)[0] not in READ_VERBS and not is_lease_request(request)


def compute_per(kind: str, counts: Counter[str], count: int, per: str = "node") -> Figures:
    """Figures "<kind>: <what> per node" and their sum, without requests for Leases."""
    counted = {what: n for what, n in sorted(counts.items()) if not is_lease_request(what)}
    figures = {f"{kind}: {what} per {per}": n / count for what, n in counted.items()}
    return {f"{kind}: all per {per}": sum(counted.values()) / count} | figures
