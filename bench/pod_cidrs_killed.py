"""A burst whose nodes get pod CIDRs from three replicas of ipam, one of which is killed in its middle."""

import asyncio
import re
from typing import Final

from bench.figures import Figures, Run
from bench.fleet import fleet
from bench.joining import PATIENT, POD_CIDR_FLAGS, carried
from bench.measuring import Measuring, present
from bench.pod_cidr_figures import (
    BEFORE_THE_KILL,
    carried_figures,
    killed_figures,
    killed_problems,
    served_figures,
)
from bench.pod_cidr_writes import writes_of_ipam
from bench.pod_cidrs import end_claims
from bench.stage import quiet
from libs.common.service_spec import DEFAULT_SERVICES, IPAM
from libs.testbed.running_services import RunningServices

_REPLICAS: Final = 3
_LOOK_SECONDS: Final = 0.1
_SERVED: Final = re.compile(r"^talosccm_ipam_nodes_served_total (\S+)$", re.MULTILINE)


async def pod_cidrs_killed(m: Measuring) -> Run:
    """A process per service, three for ipam; the busiest of them is killed when a third of all are served."""
    stage, count = m.stage, m.wanted.nodes
    first, *machines = fleet(m.name, count + 1)
    ours = m.controlled(
        *POD_CIDR_FLAGS,
        wirings=(*DEFAULT_SERVICES, IPAM),
        replicas={IPAM.service: _REPLICAS},
        own_flags=PATIENT,
    )
    async with ours as controlled, present(stage, [first, *machines]) as names:
        await m.joined(names[:1], alone=False, pod_cidrs=True)  # it pays for connections
        await quiet(stage)
        mark = stage.control_plane.audit_mark()
        async with asyncio.TaskGroup() as group:
            killing = group.create_task(_kill_the_busiest(controlled.services, count // 3))
            joins = await m.joined(names[1:], alone=False, pod_cidrs=True)
        settled = await quiet(stage)
        carries = await carried(stage, names)
        writes = writes_of_ipam(stage.control_plane, mark)
    await end_claims(stage)
    figures = (
        killed_figures(writes, count)
        | killing.result()
        | served_figures(joins.nodes)
        | carried_figures(carries)
    )
    return m.run("pod-cidrs-killed", figures, killed_problems(figures, nodes=count, settled=settled))


async def _kill_the_busiest(services: RunningServices, enough: int) -> Figures:
    """When they have served so many nodes together. How many that was, and how many of them that one had."""
    replicas = [name for name in services.children if name.startswith(IPAM.service)]
    before = await _served(services, replicas)
    while True:
        after = await _served(services, replicas)
        served = {name: number - before.get(name, 0.0) for name, number in after.items()}
        if len(after) == len(replicas) and sum(served.values()) >= enough:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    busiest = max(served, key=lambda name: served[name])
    await services.kill(busiest)
    return {
        BEFORE_THE_KILL: sum(served.values()),
        "pod CIDRs: ... by the replica that was killed": served[busiest],
    }


async def _served(services: RunningServices, replicas: list[str]) -> dict[str, float]:
    pages = await asyncio.gather(*(services.page(name, "/metrics") for name in replicas))
    found = {name: _SERVED.search(page) for name, page in zip(replicas, pages, strict=True)}
    return {name: float(said[1]) for name, said in found.items() if said}  # too busy to say, now and then
