"""Nodes that join, without any controller and with one: the scenarios `burst` and `single`."""

from collections.abc import Sequence
from ipaddress import ip_network
from itertools import groupby
from typing import Final

from libs.testbed.kubelets_in_go import GoNodeJoin
from tests.bench import costs
from tests.bench.figures import (
    BenchRun,
    Figures,
    compute_issued_figures,
    compute_join_figures,
    compute_ratio,
    compute_times,
    compute_untainted_figures,
    find_begin,
    list_broken,
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

_ALONE: Final = "joins only: "
_FIRST_SECONDS: Final = 60  # a controller that cannot serve one node is not measured
_OUTCOMES: Final = {
    "never untainted": "nodes did not lose their taint in time",
    "never issued": "certificates were not issued in time",
}


async def measure_burst(m: Measurement) -> BenchRun:
    """All nodes join at once, first without any controller, then with our services."""
    alone = await _measure_alone(m, m.options.nodes)
    figures, problems = await _measure_with_controller(m, m.options.nodes, pod_cidrs=m.options.pod_cidrs)
    # The unit is the time that the same machine takes for the joins alone.
    unit = alone[f"{_ALONE}all joined s"]
    compared = {"untainted / joins only": compute_ratio(figures["all untainted s"], unit)}
    if m.options.certificates:
        compared["issued / joins only"] = compute_ratio(figures["all issued s"], unit)
    return m.make_run("burst", compared | alone | figures, problems)


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
    return compute_join_figures(joins.nodes, _ALONE)


async def _measure_with_controller(
    m: Measurement, nodes: int, *, one_at_a_time: bool = False, pod_cidrs: bool = False
) -> tuple[Figures, list[str]]:
    """Joins with the controller of the mode, with or without pod CIDRs.

    Returns the figures and the promises that failed.
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
    figures = compute_untainted_figures(joins.nodes)
    if filed := [node.request for node in joins.nodes if node.request]:
        figures |= compute_issued_figures(filed, find_begin(joins.nodes))
    figures |= compute_join_figures(joins.nodes) | cost.compute_figures(nodes)
    if cost.before.messages is not None and cost.messages is not None:
        figures |= compute_message_figures(cost.before.messages, cost.messages, cost.calls, nodes)
    figures["controller: CPU per node ms"] = 1000 * figures["controller: CPU s"] / nodes
    figures["context: watch restarts of the observer"] = float(joins.restarts)
    figures["start to ready s"] = controlled.start_seconds
    problems = (
        [] if cost.settled else ["the controller was not idle before the joins, or 20 s after the last"]
    )
    problems += list_broken(figures, _OUTCOMES)
    if pod_cidrs:
        figures |= compute_pod_cidr_figures(joins.nodes, carried, figures)
        problems += find_pod_cidr_problems(figures, nodes=nodes)
        await delete_claims(stage)
    return figures, problems


def find_first_join_problem(node: GoNodeJoin) -> str:
    """Return what another controller did not do for the first node; "" if it did all."""
    if not node.untainted:
        return f"it left the taint on the first node for {_FIRST_SECONDS} s (controller cloud-node)"
    if node.request and not node.request.issued:
        return "the first certificate was not issued (controller node-csr-approval)"
    return ""


CLAIMS: Final = "pod CIDRs: ConfigMap writes per node"
_WRITES: Final = ("Kubernetes: create configmaps per node", "Kubernetes: update configmaps per node")
_PROMISES: Final = {
    "never with pod CIDRs": "nodes did not get pod CIDRs in time",
    "pod CIDRs: given twice": "pod CIDRs overlap another one",
    "pod CIDRs: nodes without both families": "nodes do not have one pod CIDR of each family",
}
_MOST_CLAIMS: Final = 0.1  # promised, writes per node
_ENOUGH: Final = 1000  # with fewer nodes the figure depends on seconds, not on nodes


def compute_pod_cidr_figures(
    nodes: Sequence[GoNodeJoin], carried: Sequence[tuple[str, ...]], requests: Figures
) -> Figures:
    """Figures of nodes that joined and their blocks; `requests` has the requests per node."""
    return {
        CLAIMS: sum(requests.get(name, 0.0) for name in _WRITES),
        **compute_served_figures(nodes),
        **compute_carried_figures(carried),
    }


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


def find_pod_cidr_problems(figures: Figures, *, nodes: int) -> list[str]:
    """The promises that did not hold."""
    found = list_broken(figures, _PROMISES)
    if nodes >= _ENOUGH and figures[CLAIMS] > _MOST_CLAIMS:
        found.append(f"more than {_MOST_CLAIMS} writes of claims per node")
    return found
