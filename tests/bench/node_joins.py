"""Joins of nodes, without any controller and with ours, for `burst` and `single`."""

import contextlib
from collections.abc import Mapping, Sequence

from libs.common.contract.services import DEFAULT_SERVICES, IPAM
from libs.testbed.kubelets_in_go import GoJoinBatch, GoNodeJoin
from libs.testbed.service_processes import SERVICE_NETWORKS
from tests.bench import costs
from tests.bench.bench_cluster import BenchCluster, RunningController, wait_until_quiet
from tests.bench.bench_options import AGAINST_MODES
from tests.bench.cpu import compute_cpu_figures
from tests.bench.figures import (
    Figures,
    compute_issued_figures,
    compute_join_figures,
    compute_untainted_figures,
)
from tests.bench.fleet import make_control_plane, make_fleet
from tests.bench.loop_speed import measure_speed
from tests.bench.measurement import Measurement, run_machines
from tests.bench.message_counts import compute_message_figures
from tests.bench.pod_cidr_figures import compute_carried_figures, compute_served_figures

# Ranges that no machine of the fleet uses.
POD_CIDR_FLAGS = (
    "--allocate-node-cidrs",
    "--cluster-cidr=10.128.0.0/9,fd00:10:128::/48",
    f"--service-cluster-ip-range={SERVICE_NETWORKS}",
)


async def measure_joins_alone(m: Measurement, nodes: int, *, one_at_a_time: bool = False) -> Figures:
    """Joins without any controller, the unit of the other figures. Requests for certificates stay pending."""
    asking = m.options.certificates
    async with run_machines(m.stage, make_fleet(f"{m.name}-alone", nodes), certificates=int(asking)) as names:
        joins = await m.join_nodes(names, alone=True, one_at_a_time=one_at_a_time, certificates=asking)
    return compute_join_figures(joins.nodes, "joins only: ")


async def measure_joins_with_services(
    m: Measurement,
    nodes: int,
    *,
    one_at_a_time: bool = False,
    pod_cidrs: bool = False,
    own_flags: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Figures, list[str]]:
    """Joins with the controller of the mode, with or without pod CIDRs.

    Returns the figures and the promises that failed.
    """
    stage, asking = m.stage, m.options.certificates
    first, *machines = make_fleet(m.name, nodes + 1)
    if pod_cidrs:
        first = make_control_plane(first)
    starting = _start_controller(m, pod_cidrs=pod_cidrs, own_flags=own_flags)
    machines_running = run_machines(stage, [first, *machines], certificates=int(asking))
    # The machines first: the pod CIDRs of the other controller need a control plane machine at its start.
    async with machines_running as names, starting as controlled:
        await m.join_nodes(
            names[:1], alone=False, certificates=asking, pod_cidrs=pod_cidrs
        )  # the first join pays for connections
        await wait_until_quiet(stage)
        await stage.machines.reset_calls()
        before = await costs.read_costs(stage, controlled)
        async with measure_speed() as speed:
            joins = await m.join_nodes(
                names[1:], alone=False, one_at_a_time=one_at_a_time, certificates=asking, pod_cidrs=pod_cidrs
            )
        spent = costs.read_usage(stage, controlled)
        settled = await wait_until_quiet(stage)
        figures = await _compute_figures(stage, controlled, before, joins)
        figures |= compute_cpu_figures(before.usage, spent, speed.loop_ms)
        if pod_cidrs:
            figures |= compute_served_figures(joins.nodes) | compute_carried_figures(
                await list_pod_cidrs(stage, names)
            )
    return figures, _find_problems(figures, settled=settled)


def _start_controller(
    m: Measurement, *, pod_cidrs: bool, own_flags: Mapping[str, Sequence[str]] | None
) -> contextlib.AbstractAsyncContextManager[RunningController]:
    if m.mode in AGAINST_MODES:
        return m.start_other_controller(pod_cidrs=pod_cidrs)
    if pod_cidrs:
        return m.start_services(*POD_CIDR_FLAGS, wirings=(*DEFAULT_SERVICES, IPAM), own_flags=own_flags)
    return m.start_services(own_flags=own_flags)


async def _compute_figures(
    stage: BenchCluster, controlled: RunningController, before: costs.CostReading, joins: GoJoinBatch
) -> Figures:
    after, nodes = await costs.read_costs(stage, controlled), len(joins.nodes)
    calls = await costs.count_calls(stage)
    figures = (
        compute_untainted_figures(joins.nodes)
        | _compute_certificate_figures(joins.nodes)
        | compute_join_figures(joins.nodes)
        | costs.compute_per_node("Kubernetes", costs.count_requests(stage, before.audit), nodes)
        | costs.compute_per_node("Talos", calls, nodes)
        | costs.compute_process_figures(before, after)
    )
    if before.messages is not None and after.messages is not None:
        figures |= compute_message_figures(before.messages, after.messages, calls, nodes)
    for group, spent in (("ours", "ours: all CPU s"), ("controller", "controller: CPU s")):
        if spent in figures:
            figures[f"{group}: CPU per node ms"] = 1000 * figures[spent] / nodes
    figures["context: watch restarts of the observer"] = float(joins.restarts)
    figures["start to ready s"] = controlled.start_seconds
    return figures


async def list_pod_cidrs(stage: BenchCluster, names: list[str]) -> list[tuple[str, ...]]:
    """The podCIDRs of each of these Nodes, as kube-apiserver lists them."""
    listed = (await stage.admin.request("GET", "/api/v1/nodes")).body["items"]
    found = {node["metadata"]["name"]: tuple(node["spec"].get("podCIDRs", ())) for node in listed}
    return [found.get(name, ()) for name in names]


def _find_problems(figures: Figures, *, settled: bool) -> list[str]:
    found = [] if settled else ["the controller still sent requests 20 s after the last join"]
    if stuck := figures["never untainted"]:
        found.append(f"{stuck:.0f} nodes did not lose their taint in time")
    if missing := figures.get("never issued"):
        found.append(f"{missing:.0f} certificates were not issued in time")
    return found


def _compute_certificate_figures(nodes: tuple[GoNodeJoin, ...]) -> Figures:
    """Figures of the certificate requests of nodes that joined; none if they filed none."""
    filed = [node.request for node in nodes if node.request]
    return compute_issued_figures(filed, min(node.begun for node in nodes)) if filed else {}
