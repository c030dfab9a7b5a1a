"""The scenario `leader-killed`: every node files two requests at once, then the leading watcher is killed."""

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import WATCHER
from libs.testbed.child_process import ChildProcess
from libs.testbed.kubelets_in_go import GoCertificateRequest
from libs.testbed.service_processes import ServiceProcesses
from tests.bench.bench_cluster import BenchCluster, BenchServices, wait_until_quiet
from tests.bench.figures import (
    BenchRun,
    Figures,
    compute_issued_figures,
    compute_join_figures,
    compute_untainted_figures,
    find_begin,
    list_broken,
)
from tests.bench.measurement import Measurement, make_fleet, run_machines

STABLE_SECONDS: Final = 10.0  # all are ready that long before readiness counts as restored
READY_SECONDS: Final = 60.0  # promised: all processes are ready again so long after the kill
READY_AGAIN: Final = "killed to all ready s"
NEXT_LEADER: Final = "killed to next leader s"
TAINTED: Final = "Nodes with the taint at the end"
MISSING: Final = "Nodes missing at the end"
_DENIED: Final = "requests denied"
_BEFORE: Final = "requests issued before the kill"
_PROMISES: Final = {
    "never untainted": "nodes did not lose their taint in time",
    "never issued": "nodes did not get the certificate of their newest request",
    _DENIED: "requests were denied",
    TAINTED: "nodes have the taint at the end",
    MISSING: "nodes are missing at the end",
}
_MIDDLE: Final = 0.8  # share of all nodes: a leader killed later leaves too few requests to the next one

Samples = Sequence[tuple[float, bool]]  # Unix seconds, and whether all processes were ready
_REPLICAS: Final = 2
_REQUESTS: Final = 2  # per node
_POLL_SECONDS: Final = 0.5
_LEADS: Final = re.compile(r"^talosccm_leader 1\.0$", re.MULTILINE)
_APPROVED: Final = re.compile(r'^talosccm_csr_approval_count\{status="approve"\} (\S+)$', re.MULTILINE)


def find_ready_again(samples: Samples, killed_at: float) -> float:
    """Seconds from the kill until all processes were ready and stayed so for ten seconds; NaN if never."""
    since: float | None = None
    for at, is_ready in samples:
        if at < killed_at or not is_ready:
            since = None
            continue
        since = at if since is None else since
        if at - since >= STABLE_SECONDS:
            return since - killed_at
    return math.nan


def compute_request_figures(requests: Sequence[GoCertificateRequest], killed_at: float) -> Figures:
    """Figures of requests that all nodes filed together; `killed_at` is in Unix seconds.

    A node needs the certificate of its newest request. An older one without an answer is superseded.
    """
    newest = list({request.node: request for request in requests}.values())  # in the order of creation
    older = {request.name for request in requests} - {request.name for request in newest}
    begun = find_begin(requests)
    return {
        "requests filed": float(len(requests)),
        _BEFORE: float(sum(0 < request.issued < killed_at for request in requests)),
        "requests issued": float(sum(request.issued > 0 for request in requests)),
        "older requests superseded": float(
            sum(not (request.issued or request.denied) for request in requests if request.name in older)
        ),
        _DENIED: float(sum(request.denied > 0 for request in requests)),
        "first request to kill s": killed_at - begun,
        "killed to last issued s": max((each.issued for each in newest), default=math.nan) - killed_at,
        "all filed s": max(request.filed for request in requests) - begun,
    } | compute_issued_figures(newest, begun)


def find_leader_problems(figures: Figures, *, nodes: int, settled: bool) -> list[str]:
    """The promises that did not hold."""
    found = [] if settled else ["our services still sent requests at the end"]
    found += list_broken(figures, _PROMISES)
    if math.isnan(figures[NEXT_LEADER]):
        found.append("the leader was not killed, or no other one followed")
    elif figures[_BEFORE] > _MIDDLE * nodes:
        found.append(
            f"the bench killed the leader too late, when {figures[_BEFORE]:.0f} requests were issued"
        )
    if not figures[READY_AGAIN] <= READY_SECONDS:
        found.append(f"not all processes were ready again within {READY_SECONDS:g} s")
    return found


class _Kill(NamedTuple):
    at: float  # Unix seconds
    next_leader_seconds: float  # NaN if none followed


async def measure_leader_killed(m: Measurement) -> BenchRun:
    """Nodes join; each files two requests at once; the leader is killed when a third of them is approved."""
    stage, count, patience = m.stage, m.options.nodes, m.options.patience
    leaders = (WATCHER.service, "all-in-one")
    ours = m.start_services(
        replicas=dict.fromkeys(leaders, _REPLICAS),
        own_flags=dict.fromkeys(leaders, build_lease_flags(m.options.lease_seconds)),
        restarts=True,
    )
    async with (
        ours as controlled,
        run_machines(stage, make_fleet(m.name, count), certificates=_REQUESTS) as names,
    ):
        services = controlled.services
        joins = await m.join_nodes(names, alone=False)
        settled = await wait_until_quiet(stage, seconds=patience)
        m.report(f"{count} nodes have joined, each files {_REQUESTS} requests")
        samples: list[tuple[float, bool]] = []
        restarted = len(controlled.restarts)
        async with asyncio.TaskGroup() as group:
            recording = group.create_task(_record_readiness(services, samples))
            killing = group.create_task(_kill_leader(controlled, _REQUESTS * count // 6, patience))
            filed = await stage.kubelets.file_requests(
                names, certificates=_REQUESTS, concurrency=m.options.concurrency, seconds=patience
            )
            killed = await killing
            await _wait_until_ready_again(samples, killed.at)
            recording.cancel()
        settled = await wait_until_quiet(stage, seconds=patience) and settled
        figures: Figures = {
            READY_AGAIN: find_ready_again(samples, killed.at),
            NEXT_LEADER: killed.next_leader_seconds,
            **compute_request_figures(filed.requests, killed.at),
            **compute_untainted_figures(joins.nodes),
            **compute_join_figures(joins.nodes),
            **await _count_incomplete(stage, count),
            "processes ended before the kill": float(restarted),
            "processes ended, the leader included": float(len(controlled.restarts) - restarted),
            **{
                f"ours: {name} peak RSS MB": usage.peak_rss_bytes / 1e6
                for name, usage in services.measure_usage().items()
            },
            "context: watch restarts of the observer": float(joins.restarts + filed.restarts),
        }
    return m.make_run("leader-killed", figures, find_leader_problems(figures, nodes=count, settled=settled))


def build_lease_flags(seconds: float) -> Sequence[str]:
    """The flags of a watcher whose Lease lasts so long; its deadline is in the same ratio as by default."""
    return (
        f"--leader-elect-lease-duration={seconds:g}s",
        f"--leader-elect-renew-deadline={seconds * 2 / 3:g}s",
    )


async def _record_readiness(services: ServiceProcesses, samples: list[tuple[float, bool]]) -> None:
    """Sample /readyz until cancelled; a process that does not answer within a second is not ready."""
    while True:
        pages = await asyncio.gather(*(services.fetch_page(name, "/readyz") for name in services.ports))
        samples.append((time.time(), all(page == "ok" for page in pages)))
        await asyncio.sleep(_POLL_SECONDS)


async def _wait_until_ready_again(samples: list[tuple[float, bool]], killed_at: float) -> None:
    """Wait until all processes are ready again, or past the promised time."""
    while math.isnan(find_ready_again(samples, killed_at)):
        if not time.time() < killed_at + READY_SECONDS + STABLE_SECONDS:
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _kill_leader(controlled: BenchServices, enough: int, seconds: float) -> _Kill:
    """Kill the leader once so many requests are approved; it restarts, and a standby leads."""
    at = next_leader_at = math.nan
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            leader = await _wait_for_leader(controlled, enough)
            pid = leader.pid
            await leader.kill()
            at = time.time()
            await _wait_for_leader(controlled, 0, killed=pid)
            next_leader_at = time.time()
    return _Kill(at, next_leader_at - at)


async def _wait_for_leader(controlled: BenchServices, enough: int, *, killed: int = 0) -> ChildProcess:
    """The leading process once so many requests are approved, other than the killed one."""
    while True:
        pages = await controlled.fetch_metrics()
        found = (_APPROVED.search(page) for page in pages.values())
        if sum(float(count[1]) for count in found if count) >= enough:
            for name, page in pages.items():
                child = controlled.services.children[name]
                if _LEADS.search(page) and child.pid != killed:
                    return child
        await asyncio.sleep(_POLL_SECONDS)


async def _count_incomplete(stage: BenchCluster, nodes: int) -> Figures:
    listed = (await stage.admin.request("GET", "/api/v1/nodes")).body["items"]
    taints = [{taint["key"] for taint in node["spec"].get("taints", ())} for node in listed]
    return {
        MISSING: float(nodes - len(listed)),
        TAINTED: float(sum(UNINITIALIZED_TAINT in keys for keys in taints)),
    }
