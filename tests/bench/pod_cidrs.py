"""Pod CIDRs: figures of a burst that gets them, writes of ipam, and the scenario `pod-cidrs-killed`."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from ipaddress import ip_network
from itertools import groupby
from typing import Final

import msgspec
from msgspec import field

from libs.common.contract.services import IPAM
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.control_plane.node_history import WriteRequest
from libs.testbed.kubelets_in_go import GoNodeJoin
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS, ServiceProcesses
from tests.bench.bench_cluster import wait_until_quiet
from tests.bench.costs import compare_cpu, remove_group
from tests.bench.figures import BenchRun, Figures, compute_ratio, compute_times, find_begin, list_broken
from tests.bench.measurement import Measurement, delete_claims, list_pod_cidrs, make_fleet, run_machines

_RESOURCES: Final = ("configmaps", "nodes")
RATIO: Final = "usable with pod CIDRs / without"
BEFORE_THE_KILL: Final = "pod CIDRs: nodes served before the kill"
WITHOUT: Final = "without pod CIDRs: "
_CLAIMS: Final = "pod CIDRs: ConfigMap writes per node"
_PATCHES: Final = "pod CIDRs: Node patches per node"
_MIDDLE: Final = 0.8  # share of all nodes: a replica killed later leaves too few to the others
_EVERY_CLAIM: Final = "pod CIDRs: writes of claims per node, refused ones too"
_AGAIN: Final = "pod CIDRs: nodes patched more than once"
_KUBERNETES: Final = "Kubernetes: "
_OF_CLAIMS: Final = tuple(f"{_KUBERNETES}{verb} configmaps" for verb in ("create", "update"))
_SERVED_PROMISES: Final = {
    "never with pod CIDRs": "nodes did not get pod CIDRs in time",
    "pod CIDRs: given twice": "pod CIDRs overlap another one",
    "pod CIDRs: nodes without both families": "nodes do not have one pod CIDR of each family",
}
_MOST_TIMES: Final = 1.3  # promised: relative to the burst without
_MOST_CLAIMS: Final = 0.1  # writes per node
_ENOUGH: Final = 1000  # with fewer nodes the figures depend on seconds, not on nodes
_REPLICAS: Final = 3
_POLL_SECONDS: Final = 0.1
_SERVED: Final = re.compile(r"^talosccm_ipam_nodes_served_total (\S+)$", re.MULTILINE)


class IpamWrites(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of writes. A patch that was cut off may have been applied; its sender got no response."""

    claims: int = 0
    claims_refused: int = 0  # another replica was faster
    patched: Counter[str] = field(default_factory=Counter)  # by node
    patches_refused: Counter[str] = field(default_factory=Counter)
    patches_cut_off: Counter[str] = field(default_factory=Counter)


def count_ipam_writes(control_plane: ControlPlane, since: int) -> IpamWrites:
    """Count the writes since a mark in the audit log; ipam must be a separate process, with its own user."""
    return count_writes(control_plane.list_writes(_RESOURCES, since))


def count_writes(writes: Iterable[WriteRequest]) -> IpamWrites:
    """Count the writes of ipam among writes of all users."""
    claims: Counter[bool] = Counter()
    patched: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    cut_off: Counter[str] = Counter()
    for write in writes:
        if write.user != get_user_name(IPAM):
            continue
        succeeded = write.code < HTTPStatus.BAD_REQUEST
        if write.resource == "configmaps":
            claims[succeeded] += 1
        elif (write.verb, write.resource) == ("patch", "nodes"):
            into = patched if succeeded else cut_off if write.code == HTTPStatus.GATEWAY_TIMEOUT else refused
            into[write.about] += 1
    return IpamWrites(
        claims=claims[True],
        claims_refused=claims[False],
        patched=patched,
        patches_refused=refused,
        patches_cut_off=cut_off,
    )


def compute_served_figures(nodes: Sequence[GoNodeJoin]) -> Figures:
    """Time until nodes are usable: no taint, with pod CIDRs. Nodes that never are usable are only counted."""
    begun = find_begin(nodes)
    ends = (max(node.untainted, node.served) if node.untainted and node.served else 0.0 for node in nodes)
    usable = compute_times("usable", zip((node.begun for node in nodes), ends, strict=True), begun)
    del usable["never usable"]
    served = compute_times("with pod CIDRs", ((node.begun, node.served) for node in nodes), begun)
    return {name: served[name] for name in ("all with pod CIDRs s", "never with pod CIDRs")} | usable


def compute_carried_figures(carried: Sequence[tuple[str, ...]]) -> Figures:
    """Blocks of Nodes that overlap another one, and Nodes without one block of each family."""
    blocks = [ip_network(block) for each in carried for block in each]
    spans = sorted((block.version, int(block[0]), int(block[-1])) for block in blocks)
    families = [sorted(ip_network(block).version for block in each) for each in carried]
    return {
        "pod CIDRs: given twice": float(_count_overlapping(spans)),
        "pod CIDRs: nodes without both families": float(sum(family != [4, 6] for family in families)),
    }


def _count_overlapping(spans: Sequence[tuple[int, int, int]]) -> int:
    """How many of the sorted spans start before an earlier one of their family ends."""
    found = 0
    for _, family in groupby(spans, key=lambda span: span[0]):
        reached = -1
        for _, first, last in family:
            found += first <= reached
            reached = max(reached, last)
    return found


def compare_bursts(without: Figures, served: Figures) -> Figures:
    """The figures of the burst with pod CIDRs, and their differences from the burst without.

    In one process all services use one user, so only the difference shows the requests of ipam.
    """
    patches = f"{_KUBERNETES}patch nodes per node"
    every = f"{_KUBERNETES}all per node"
    refused = [f"{kind} (refused) per node" for kind in (*_OF_CLAIMS, f"{_KUBERNETES}patch nodes")]
    first = {
        RATIO: compute_ratio(served["all usable s"], without["all untainted s"]),
        **compare_cpu(without, served),
        _PATCHES: served.get(patches, 0.0) - without.get(patches, 0.0),
        _CLAIMS: sum(served.get(f"{kind} per node", 0.0) for kind in _OF_CLAIMS),
        "pod CIDRs: refused writes per node": sum(served.get(kind, 0.0) for kind in refused),
        "pod CIDRs: requests per node in all": served[every] - without[every],
        "pod CIDRs: CPU per node ms": served["ours: CPU per node ms"] - without["ours: CPU per node ms"],
    }
    shown = ("all untainted s", "untainted p50 ms", "untainted p99 ms", "never untainted")
    baseline = {f"{WITHOUT}{name}": without[name] for name in shown} | remove_group(without, WITHOUT)
    return first | served | baseline


def find_pod_cidr_problems(figures: Figures, *, nodes: int) -> list[str]:
    """The promises that did not hold."""
    found = find_served_problems(figures)
    if nodes >= _ENOUGH and figures[RATIO] > _MOST_TIMES:
        found.append(f"with pod CIDRs it took more than {_MOST_TIMES} times as long")
    if nodes >= _ENOUGH and figures[_CLAIMS] > _MOST_CLAIMS:
        found.append(f"more than {_MOST_CLAIMS} writes of claims per node")
    return found


def compute_killed_figures(writes: IpamWrites, nodes: int) -> Figures:
    """The writes of all replicas together, rejected ones included."""
    patched = writes.patched
    return {
        _EVERY_CLAIM: (writes.claims + writes.claims_refused) / nodes,
        "pod CIDRs: ... of which another replica was quicker with": writes.claims_refused / nodes,
        _PATCHES: patched.total() / nodes,
        _AGAIN: float(sum(count > 1 for count in patched.values())),
        "pod CIDRs: nodes patched, but refused": float(writes.patches_refused.total()),
        "pod CIDRs: nodes patched, but cut off by the kill": float(writes.patches_cut_off.total()),
    }


def find_killed_problems(figures: Figures, *, nodes: int, settled: bool) -> list[str]:
    """The promises that did not hold."""
    found = [] if settled else ["our services still sent requests 20 s after the last join"]
    found += find_served_problems(figures)
    if nodes >= _ENOUGH and figures[BEFORE_THE_KILL] > _MIDDLE * nodes:
        found.append(
            f"the bench killed a replica too late, when {figures[BEFORE_THE_KILL]:.0f} nodes were served"
        )
    found += list_broken(figures, {_AGAIN: "nodes were patched more than once"})
    if nodes >= _ENOUGH and figures[_EVERY_CLAIM] > _MOST_CLAIMS:
        found.append(f"more than {_MOST_CLAIMS} writes of claims per node")
    return found


def find_served_problems(figures: Figures) -> list[str]:
    """Nodes without pod CIDRs, and pod CIDRs that overlap."""
    return list_broken(figures, _SERVED_PROMISES)


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
