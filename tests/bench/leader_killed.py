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
from libs.testbed.service_processes import ServiceProcesses
from tests.bench.bench_cluster import BenchCluster, wait_until_quiet
from tests.bench.figures import BenchRun, Figures, compute_join_figures, compute_untainted_figures
from tests.bench.fleet import make_fleet
from tests.bench.leader_killed_figures import (
    MISSING,
    NEXT_LEADER,
    READY_AGAIN,
    READY_SECONDS,
    STABLE_SECONDS,
    TAINTED,
    compute_request_figures,
    find_leader_problems,
    find_ready_again,
)
from tests.bench.measurement import Measurement, run_machines

_REPLICAS: Final = 2
_REQUESTS: Final = 2  # per node
_POLL_SECONDS: Final = 0.5
_LEADS: Final = re.compile(r"^talosccm_leader 1\.0$", re.MULTILINE)
_APPROVED: Final = re.compile(r'^talosccm_csr_approval_count\{status="approve"\} (\S+)$', re.MULTILINE)


class _Kill(NamedTuple):
    at: float  # Unix seconds
    next_leader_seconds: float  # NaN if none followed


async def measure_leader_killed(m: Measurement) -> BenchRun:
    """Nodes join; each files two requests at once; the leader is killed when a third of them is approved."""
    stage, count, patience = m.stage, m.options.nodes, m.options.patience_seconds
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
            killing = group.create_task(_kill_leader(services, _REQUESTS * count // 6, patience))
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
            **_compute_memory_figures(services),
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


async def _kill_leader(services: ServiceProcesses, enough: int, seconds: float) -> _Kill:
    """Kill the leader once so many requests are approved; it restarts, and a standby leads."""
    at = next_leader_at = math.nan
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            leader = await _wait_for_leader(services, enough)
            pid = services.children[leader].pid
            await services.children[leader].kill()
            at = time.time()
            await _wait_for_leader(services, 0, killed=pid)
            next_leader_at = time.time()
    return _Kill(at, next_leader_at - at)


async def _wait_for_leader(services: ServiceProcesses, enough: int, *, killed: int = 0) -> str:
    """The leading process once so many requests are approved, other than the killed one."""
    while True:
        pages = await _fetch_metrics(services)
        found = (_APPROVED.search(page) for page in pages.values())
        if sum(float(count[1]) for count in found if count) >= enough:
            for name, page in pages.items():
                if _LEADS.search(page) and services.children[name].pid != killed:
                    return name
        await asyncio.sleep(_POLL_SECONDS)


async def _fetch_metrics(services: ServiceProcesses) -> dict[str, str]:
    """The metrics pages; "" of a process that does not answer."""
    names = list(services.children)
    pages = await asyncio.gather(*(services.fetch_page(name, "/metrics") for name in names))
    return dict(zip(names, pages, strict=True))


async def _count_incomplete(stage: BenchCluster, nodes: int) -> Figures:
    listed = (await stage.admin.request("GET", "/api/v1/nodes")).body["items"]
    taints = [{taint["key"] for taint in node["spec"].get("taints", ())} for node in listed]
    return {
        MISSING: float(nodes - len(listed)),
        TAINTED: float(sum(UNINITIALIZED_TAINT in keys for keys in taints)),
    }


def _compute_memory_figures(services: ServiceProcesses) -> Figures:
    return {
        f"ours: {name} peak RSS MB": usage.peak_rss_bytes / 1e6
        for name, usage in services.measure_usage().items()
    }
