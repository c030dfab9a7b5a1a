"""Nodes that join, without any controller and with one: the scenarios `burst` and `single`."""

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Final

from libs.testbed.kubelets_in_go import GoNodeJoin
from tests.bench import costs
from tests.bench.figures import (
    BenchRun,
    Figures,
    compute_issued_figures,
    compute_node_times,
    compute_ratio,
    find_begin,
)
from tests.bench.measurement import (
    Measurement,
    delete_claims,
    list_pod_cidrs,
    make_control_plane,
    make_fleet,
    run_machines,
)
from tests.bench.metrics import compute_message_figures
from tests.bench.other_controller import OtherController, OtherControllerFailed
from tests.pod_cidrs import OwnedBlock, list_overlapping

_ALONE: Final = "joins only: "
_FIRST_SECONDS: Final = 60  # a controller that cannot serve one node is not measured
_WRITES: Final = ("Kubernetes: create configmaps per node", "Kubernetes: update configmaps per node")


async def measure_burst(m: Measurement) -> BenchRun:
    """All nodes join at once, first without any controller, then with our services."""
    alone = await _measure_alone(m, m.options.nodes)
    figures, problems = await _measure_with_controller(m, m.options.nodes, pod_cidrs=m.options.pod_cidrs)
    # The unit is the time that the same machine takes for the joins alone.
    unit = alone[f"{_ALONE}all joined s"]
    compared = {"untainted / joins only": compute_ratio(figures["all untainted s"], unit)}
    if m.options.certificates:
        compared["issued / joins only"] = compute_ratio(figures["all issued s"], unit)
    return m.make_run("burst", compared | alone | figures, problems, count=m.options.nodes)


async def measure_single(m: Measurement) -> BenchRun:
    """Nodes join one at a time, at most five a second; the next one starts when the last is untainted."""
    alone = await _measure_alone(m, m.options.singles, one_at_a_time=True)
    figures, problems = await _measure_with_controller(m, m.options.singles, one_at_a_time=True)
    figures |= alone
    for name in ("all untainted s", "all joined s", "all issued s", f"{_ALONE}all joined s"):
        figures.pop(name, None)  # these depend on the pace
    return m.make_run("single", figures, problems)


async def _measure_alone(m: Measurement, nodes: int, *, one_at_a_time: bool = False) -> Figures:
    """Joins without any controller, the unit of the other figures. Requests for certificates stay pending."""
    asking = m.options.certificates
    async with run_machines(m.stage, make_fleet(f"{m.name}-alone", nodes), certificates=int(asking)) as names:
        joins = await m.join_nodes(names, alone=True, one_at_a_time=one_at_a_time, certificates=asking)
    return compute_node_times("joined", joins.nodes, lambda node: node.joined, _ALONE)


async def _measure_with_controller(
    m: Measurement, nodes: int, *, one_at_a_time: bool = False, pod_cidrs: bool = False
) -> tuple[Figures, list[str]]:
    """Joins with the controller of the mode, with or without pod CIDRs.

    Returns the figures and the problems of the measurement.
    """
    stage, asking = m.stage, m.options.certificates
    first, *machines = make_fleet(m.name, nodes + 1)
    if pod_cidrs:
        first = make_control_plane(first)
    starting = m.start_controller(pod_cidrs=pod_cidrs)
    machines_running = run_machines(stage, [first, *machines], certificates=int(asking))
    # The machines first: the pod CIDRs of the other controller need a control plane machine at its start.
    async with machines_running as names, starting as controlled:
        # the first join pays for connections
        (joined,) = (
            await m.join_nodes(
                names[:1], alone=False, certificates=asking, pod_cidrs=pod_cidrs, at_most=_FIRST_SECONDS
            )
        ).nodes
        if isinstance(controlled, OtherController) and (problem := find_first_join_problem(joined)):
            raise OtherControllerFailed(
                f"--against {m.options.against}: {problem}. Its last lines:\n{controlled.child.tail()}"
            )
        async with costs.measure_costs(stage, controlled) as cost:
            joins = await m.join_nodes(
                names[1:], alone=False, one_at_a_time=one_at_a_time, certificates=asking, pod_cidrs=pod_cidrs
            )
        carried = await list_pod_cidrs(stage, names) if pod_cidrs else []
    figures = compute_node_times("untainted", joins.nodes, lambda node: node.untainted)
    if filed := [node.request for node in joins.nodes if node.request]:
        figures |= compute_issued_figures(filed, find_begin(joins.nodes))
    figures |= compute_node_times("joined", joins.nodes, lambda node: node.joined)
    figures |= cost.compute_figures(nodes)
    if cost.messages:
        figures |= compute_message_figures(cost.messages, cost.calls, nodes)
    figures["controller: CPU per node ms"] = 1000 * figures["controller: CPU s"] / nodes
    figures["context: watch restarts of the observer"] = float(joins.restarts)
    figures["start to ready s"] = controlled.start_seconds
    if pod_cidrs:
        figures |= compute_served_figures(joins.nodes) | compute_carried_figures(carried)
        figures["pod CIDRs: ConfigMap writes per node"] = sum(figures.get(name, 0.0) for name in _WRITES)
        await delete_claims(stage)
    return figures, cost.problems


def find_first_join_problem(node: GoNodeJoin) -> str:
    """Return what another controller did not do for the first node; "" if it did all."""
    if not node.untainted:
        return f"it left the taint on the first node for {_FIRST_SECONDS} s (controller cloud-node)"
    if node.request and not node.request.issued:
        return "the first certificate was not issued (controller node-csr-approval)"
    return ""


def compute_served_figures(nodes: Sequence[GoNodeJoin]) -> Figures:
    """Time until nodes have pod CIDRs, and until they are usable: with pod CIDRs, and without the taint."""
    served = compute_node_times("with pod CIDRs", nodes, lambda node: node.served)
    usable = compute_node_times(
        "usable",
        nodes,
        lambda node: max(node.untainted, node.served) if node.untainted and node.served else 0.0,
    )
    return {name: served[name] for name in ("all with pod CIDRs s", "never with pod CIDRs")} | usable


def compute_carried_figures(carried: Sequence[tuple[str, ...]]) -> Figures:
    """Blocks of Nodes that overlap another one, and Nodes without one block of each family."""
    blocks = [OwnedBlock(number, cidr) for number, cidrs in enumerate(carried) for cidr in cidrs]
    families = [sorted(ip_network(block).version for block in each) for each in carried]
    return {
        "pod CIDRs: given twice": float(len(list_overlapping(blocks))),
        "pod CIDRs: nodes without both families": float(sum(family != [4, 6] for family in families)),
    }
