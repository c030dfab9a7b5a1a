"""The scenarios. Each starts its nodes, measures, and deletes them."""

import time
from typing import Final

from libs.testbed.machine_fleet import SimMachineFacts
from tests.bench import costs, cpu
from tests.bench.bench_cluster import BenchCluster, BenchServices, wait_until_quiet
from tests.bench.bench_options import AGAINST_MODES, Scenario
from tests.bench.certificates import measure_certificates, measure_early_requests
from tests.bench.figures import BenchRun, Figures, compute_percentile, compute_ratio
from tests.bench.fleet import make_fleet, move_external_address
from tests.bench.leader_killed import measure_leader_killed
from tests.bench.measurement import Measure, Measurement, run_machines
from tests.bench.node_joins import measure_joins_alone, measure_joins_with_services
from tests.bench.pod_cidr_figures import RATIO, find_served_problems
from tests.bench.pod_cidrs import measure_with_and_without_pod_cidrs
from tests.bench.pod_cidrs_killed import measure_pod_cidrs_killed
from tests.bench.rule_change import measure_rule_changes
from tests.bench.scale import measure_scale
from tests.bench.soak import measure_soak

_CHANGE_SECONDS: Final = 30


async def measure_burst(m: Measurement) -> BenchRun:
    """All nodes join at once, first without any controller, then with our services."""
    alone = await measure_joins_alone(m, m.options.nodes)
    if m.options.pod_cidrs and m.mode in AGAINST_MODES:
        figures, problems = await measure_joins_with_services(m, m.options.nodes, pod_cidrs=True)
        problems += find_served_problems(figures)
    elif m.options.pod_cidrs:
        figures, problems = await measure_with_and_without_pod_cidrs(m)
    else:
        figures, problems = await measure_joins_with_services(m, m.options.nodes)
    # The unit is the time that the same machine takes for the joins alone.
    unit = alone["joins only: all joined s"]
    compared = {"untainted / joins only": compute_ratio(figures["all untainted s"], unit)}
    if m.options.certificates:
        compared["issued / joins only"] = compute_ratio(figures["all issued s"], unit)
    ratios = (RATIO, cpu.RATIO, cpu.IN_LOOPS, cpu.IN_KUBELETS, cpu.UNTIL_QUIET)
    compared |= {name: figures[name] for name in ratios if name in figures}
    return m.make_run("burst", compared | alone | figures, problems)


async def measure_single(m: Measurement) -> BenchRun:
    """Nodes join one at a time, at most five a second; the next one starts when the last is untainted."""
    alone = await measure_joins_alone(m, m.options.singles, one_at_a_time=True)
    del alone["joins only: all joined s"]
    figures, problems = await measure_joins_with_services(m, m.options.singles, one_at_a_time=True)
    for name in ("all untainted s", "all joined s", "all issued s"):  # these depend on the pace
        figures.pop(name, None)
    return m.make_run("single", figures | alone, problems)


async def measure_steady(m: Measurement) -> BenchRun:
    """Initialized nodes send heartbeats: the services must write nothing and use little CPU."""
    stage, wanted = m.stage, m.options
    async with run_machines(stage, make_fleet(m.name, wanted.steady_nodes)) as names:
        await m.join_nodes(names, alone=True)
        alone = await _measure_heartbeats(m, names, None, "heartbeats only: ")
        async with m.start_services() as controlled:
            prepared = await stage.kubelets.wait_until_untainted(names, seconds=wanted.patience_seconds)
            prepared = await wait_until_quiet(stage) and prepared
            mark = stage.control_plane.audit_mark()
            figures = await _measure_heartbeats(m, names, controlled, "")
            asked = costs.count_requests(stage, mark)
    unwanted = {
        what: n
        for what, n in asked.items()
        if costs.is_write_request(what) and not costs.is_lease_request(what)
    }
    problems = [f"writes although nothing had changed: {unwanted}"] if unwanted else []
    if not prepared:
        problems.append("not all nodes were initialized and idle before the heartbeats")
    leases = sum(n for what, n in asked.items() if costs.is_lease_request(what))
    first = {
        "Kubernetes: writes": float(sum(unwanted.values())),
        "Kubernetes: requests for the Lease per second": leases / wanted.steady_seconds,
        "Kubernetes: other requests": float(asked.total() - leases - sum(unwanted.values())),
    }
    return m.make_run("steady", first | figures | alone, problems)


async def _measure_heartbeats(
    m: Measurement, names: list[str], controlled: BenchServices | None, prefix: str
) -> Figures:
    before = await costs.read_costs(m.stage, controlled)
    beats = await m.stage.kubelets.send_heartbeats(
        names, seconds=m.options.steady_seconds, every_seconds=m.options.heartbeat_seconds
    )
    after = await costs.read_costs(m.stage, controlled)
    figures = {"heartbeats per second": beats.beats / beats.seconds}
    for name, value in costs.compute_process_figures(before, after).items():
        if name.endswith("CPU s"):
            figures[f"{prefix}{name} per second"] = value / beats.seconds
        elif not prefix:
            figures[name] = value
    return figures


async def measure_address_change(m: Measurement) -> BenchRun:
    """One machine after the other gets another external address: measure the time until its Node has it."""
    stage, wanted = m.stage, m.options
    machines = make_fleet(m.name, min(wanted.changes, 50), ("hcloud",))
    async with m.start_services() as controlled, run_machines(stage, machines) as names:
        await m.join_nodes(names, alone=False)
        settled = await wait_until_quiet(stage)
        await stage.machines.reset_calls()
        before = await costs.read_costs(stage, controlled)
        shown = [await _measure_shown(stage, machines[n % len(machines)], n) for n in range(wanted.changes)]
        took = [seconds for seconds in shown if seconds is not None]
        await wait_until_quiet(stage)
        after = await costs.read_costs(stage, controlled)
        figures = {
            "shown p50 ms": 1000 * compute_percentile(took, 50),
            "shown p99 ms": 1000 * compute_percentile(took, 99),
            "never shown": float(wanted.changes - len(took)),
            **costs.compute_per_node("Kubernetes", costs.count_requests(stage, before.audit), wanted.changes),
            **costs.compute_per_node("Talos", await costs.count_calls(stage), wanted.changes),
            **costs.compute_process_figures(before, after),
        }
    problems = [] if settled else ["the services were not idle before the changes"]
    if missing := wanted.changes - len(took):
        problems.append(f"{missing} changes were not on their Node after {_CHANGE_SECONDS} s")
    renamed = {name.replace("per node", "per change"): value for name, value in figures.items()}
    return m.make_run("change", renamed, problems)


async def _measure_shown(stage: BenchCluster, machine: SimMachineFacts, number: int) -> float | None:
    """Seconds from the change at the machine until its Node has the address; None if it never has it."""
    addresses, external = move_external_address(machine, number)
    await stage.kubelets.expect_texts({machine.name: external})
    begun = time.time()
    await stage.machines.change_machine(machine.id, addresses=addresses)
    shown = await stage.kubelets.wait_until_shown({machine.name: external}, seconds=_CHANGE_SECONDS)
    return shown[machine.name] - begun if machine.name in shown else None


MEASURE_BY_SCENARIO: Final[dict[Scenario, Measure]] = {
    "burst": measure_burst,
    "single": measure_single,
    "steady": measure_steady,
    "change": measure_address_change,
    "rules": measure_rule_changes,
    "certificates": measure_certificates,
    "early": measure_early_requests,
    "pod-cidrs-killed": measure_pod_cidrs_killed,
    "leader-killed": measure_leader_killed,
    "scale": measure_scale,
    "soak": measure_soak,
}
