"""Nodes that join, without any controller and with one: the scenarios `burst`, `single` and `scale`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from libs.testbed.child_process import make_directory
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS
from tests.bench import costs
from tests.bench.figures import (
    BenchRun,
    Figures,
    compute_issued_figures,
    compute_join_figures,
    compute_ratio,
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
from tests.bench.options import AGAINST_MODES
from tests.bench.pod_cidrs import (
    RATIO,
    compare_bursts,
    compute_carried_figures,
    compute_served_figures,
    find_pod_cidr_problems,
    find_served_problems,
)

_ALONE: Final = "joins only: "
_OUTCOMES: Final = {
    "never untainted": "nodes did not lose their taint in time",
    "never issued": "certificates were not issued in time",
}
# A figure of a burst -> its name in `scale`.
_SCALED: Final = {
    "controller: CPU per node ms": "CPU per node ms",
    "controller: peak RSS MB": "peak RSS MB",
    "Kubernetes: all per node": "API requests per node",
    "per node: messages published": "messages published per node",
    "all untainted s": "all untainted s",
    "all issued s": "all issued s",
}
SCALE_CPU: Final = _SCALED["controller: CPU per node ms"]
GROWTH: Final = "scale: CPU per node, most / least"


async def measure_burst(m: Measurement) -> BenchRun:
    """All nodes join at once, first without any controller, then with our services."""
    alone = await _measure_alone(m, m.options.nodes)
    if m.options.pod_cidrs and m.mode in AGAINST_MODES:
        figures, problems = await _measure_with_controller(m, m.options.nodes, pod_cidrs=True)
        problems += find_served_problems(figures)
    elif m.options.pod_cidrs:
        figures, problems = await _measure_with_and_without_pod_cidrs(m)
    else:
        figures, problems = await _measure_with_controller(m, m.options.nodes)
    # The unit is the time that the same machine takes for the joins alone.
    unit = alone[f"{_ALONE}all joined s"]
    compared = {"untainted / joins only": compute_ratio(figures["all untainted s"], unit)}
    if m.options.certificates:
        compared["issued / joins only"] = compute_ratio(figures["all issued s"], unit)
    ratios = (RATIO, costs.CPU_RATIO, costs.UNTIL_QUIET)
    compared |= {name: figures[name] for name in ratios if name in figures}
    return m.make_run("burst", compared | alone | figures, problems)


async def measure_single(m: Measurement) -> BenchRun:
    """Nodes join one at a time, at most five a second; the next one starts when the last is untainted."""
    alone = await _measure_alone(m, m.options.singles, one_at_a_time=True)
    figures, problems = await _measure_with_controller(m, m.options.singles, one_at_a_time=True)
    figures |= alone
    for name in ("all untainted s", "all joined s", "all issued s", f"{_ALONE}all joined s"):
        figures.pop(name, None)  # these depend on the pace
    return m.make_run("single", figures, problems)


async def measure_scale(m: Measurement) -> BenchRun:
    """A burst of each size, each time with restarted services."""
    figures: Figures = {}
    problems: list[str] = []
    for nodes in m.options.sizes:
        of_size = msgspec.structs.replace(m, name=f"{m.name}-{nodes}")
        found, failed = await _measure_with_controller(of_size, nodes, own_flags=PATIENT_LEASE_FLAGS)
        figures |= select_scale_figures(found, nodes)
        problems += [f"{nodes} nodes: {problem}" for problem in failed]
    return m.make_run("scale", compute_growth(figures, m.options.sizes) | figures, problems)


def name_figure(nodes: int, what: str) -> str:
    """The name of a figure of `scale` for the burst of that size."""
    return f"scale: {nodes} nodes: {what}"


def select_scale_figures(found: Figures, nodes: int) -> Figures:
    """The figures of one burst that are compared over the sizes."""
    return {name_figure(nodes, what): found[name] for name, what in _SCALED.items() if name in found}


def compute_growth(figures: Figures, sizes: Iterable[int]) -> Figures:
    """How much the CPU per node differs between the sizes; 1 is flat."""
    cpu = [figures[name_figure(nodes, SCALE_CPU)] for nodes in sizes]
    return {GROWTH: compute_ratio(max(cpu), min(cpu))}


async def _measure_alone(m: Measurement, nodes: int, *, one_at_a_time: bool = False) -> Figures:
    """Joins without any controller, the unit of the other figures. Requests for certificates stay pending."""
    asking = m.options.certificates
    async with run_machines(m.stage, make_fleet(f"{m.name}-alone", nodes), certificates=int(asking)) as names:
        joins = await m.join_nodes(names, alone=True, one_at_a_time=one_at_a_time, certificates=asking)
    return compute_join_figures(joins.nodes, _ALONE)


async def _measure_with_controller(
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
    starting = m.start_controller(pod_cidrs=pod_cidrs, own_flags=own_flags)
    machines_running = run_machines(stage, [first, *machines], certificates=int(asking))
    # The machines first: the pod CIDRs of the other controller need a control plane machine at its start.
    async with machines_running as names, starting as controlled:
        # the first join pays for connections
        await m.join_nodes(names[:1], alone=False, certificates=asking, pod_cidrs=pod_cidrs)
        async with costs.measure_costs(stage, controlled) as cost:
            joins = await m.join_nodes(
                names[1:], alone=False, one_at_a_time=one_at_a_time, certificates=asking, pod_cidrs=pod_cidrs
            )
            until_last = costs.compute_cpu_figures(cost.before.usage, costs.read_usage(stage, controlled))
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
    figures |= until_last
    if pod_cidrs:
        figures |= compute_served_figures(joins.nodes) | compute_carried_figures(carried)
    idle = [] if cost.settled else ["the controller was not idle before the joins, or 20 s after the last"]
    return figures, idle + list_broken(figures, _OUTCOMES)


async def _measure_with_and_without_pod_cidrs(m: Measurement) -> tuple[Figures, list[str]]:
    """Measure twice, each time with restarted services: with the defaults, and with ipam.

    The order alternates from run to run (ABBA), so that other load affects both equally.
    """
    nodes, found, problems = m.options.nodes, {}, []
    for pod_cidrs in (False, True) if m.number % 2 else (True, False):
        of_burst = m
        if not pod_cidrs:
            profiles = make_directory(m.profiles / "without-pod-cidrs") if m.profiles else None
            of_burst = msgspec.structs.replace(m, name=f"{m.name}-without", profiles=profiles)
        found[pod_cidrs], failed = await _measure_with_controller(
            of_burst, nodes, pod_cidrs=pod_cidrs, own_flags=PATIENT_LEASE_FLAGS
        )
        problems += failed
        if pod_cidrs:
            await delete_claims(m.stage)
    figures = compare_bursts(found[False], found[True])
    return figures, [*problems, *find_pod_cidr_problems(figures, nodes=nodes)]
