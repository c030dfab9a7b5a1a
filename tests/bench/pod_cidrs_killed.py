"""A burst whose nodes get pod CIDRs from three replicas of ipam; the bench kills one during the burst."""

import asyncio
import re
from typing import Final

from libs.common.contract.services import IPAM
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS, ServiceProcesses
from tests.bench.bench_cluster import wait_until_quiet
from tests.bench.figures import BenchRun, Figures
from tests.bench.fleet import make_fleet
from tests.bench.joins import list_pod_cidrs
from tests.bench.measurement import Measurement, delete_claims, run_machines
from tests.bench.pod_cidr_figures import (
    BEFORE_THE_KILL,
    compute_carried_figures,
    compute_killed_figures,
    compute_served_figures,
    count_ipam_writes,
    find_killed_problems,
)

_REPLICAS: Final = 3
_POLL_SECONDS: Final = 0.1
_SERVED: Final = re.compile(r"^talosccm_ipam_nodes_served_total (\S+)$", re.MULTILINE)


async def measure_pod_cidrs_killed(m: Measurement) -> BenchRun:
    """Measure with three processes of ipam; kill the busiest when a third of the nodes are served."""
    stage, count = m.stage, m.options.nodes
    first, *machines = make_fleet(m.name, count + 1)
    ours = m.start_services(pod_cidrs=True, replicas={IPAM.service: _REPLICAS}, own_flags=PATIENT_LEASE_FLAGS)
    async with ours as controlled, run_machines(stage, [first, *machines]) as names:
        await m.join_nodes(names[:1], alone=False, pod_cidrs=True)  # the first join pays for connections
        await wait_until_quiet(stage)
        mark = stage.control_plane.audit_mark()
        async with asyncio.TaskGroup() as group:
            killing = group.create_task(_kill_busiest(controlled.services, count // 3))
            joins = await m.join_nodes(names[1:], alone=False, pod_cidrs=True)
        settled = await wait_until_quiet(stage)
        pod_cidrs = await list_pod_cidrs(stage, names)
        writes = count_ipam_writes(stage.control_plane, mark)
    await delete_claims(stage)
    figures = (
        compute_killed_figures(writes, count)
        | killing.result()
        | compute_served_figures(joins.nodes)
        | compute_carried_figures(pod_cidrs)
    )
    return m.make_run(
        "pod-cidrs-killed", figures, find_killed_problems(figures, nodes=count, settled=settled)
    )


async def _kill_busiest(services: ServiceProcesses, enough: int) -> Figures:
    """Kill the busiest replica once all have served enough nodes; the numbers that all and it have served."""
    replicas = [name for name in services.children if name.startswith(IPAM.service)]
    before = await _count_served(services, replicas)
    while True:
        after = await _count_served(services, replicas)
        served = {name: number - before.get(name, 0.0) for name, number in after.items()}
        if len(after) == len(replicas) and sum(served.values()) >= enough:
            break
        await asyncio.sleep(_POLL_SECONDS)
    busiest = max(served, key=lambda name: served[name])
    await services.kill(busiest)
    return {
        BEFORE_THE_KILL: sum(served.values()),
        "pod CIDRs: ... by the replica that was killed": served[busiest],
    }


async def _count_served(services: ServiceProcesses, replicas: list[str]) -> dict[str, float]:
    pages = await asyncio.gather(*(services.fetch_page(name, "/metrics") for name in replicas))
    found = {name: _SERVED.search(page) for name, page in zip(replicas, pages, strict=True)}
    return {name: float(count[1]) for name, count in found.items() if count}  # a busy replica may not answer
