"""The scenarios. Each brings its nodes, measures, and takes them away again."""

import time
from typing import Final

from bench import costs, cpu
from bench.certificates import certificates, early
from bench.figures import Figures, Run, percentile, ratio
from bench.fleet import elsewhere, fleet
from bench.joining import joined_alone, joined_with_ours
from bench.measuring import Measure, Measuring, present
from bench.pod_cidr_figures import RATIO
from bench.pod_cidrs import with_and_without_pod_cidrs
from bench.pod_cidrs_killed import pod_cidrs_killed
from bench.rule_change import rules
from bench.stage import Controlled, Stage, quiet
from bench.wanted import Scenario
from libs.testbed.machines import Machine

_CHANGE_SECONDS: Final = 30


async def burst(m: Measuring) -> Run:
    """All nodes at once, first without any controller, then with ours."""
    alone = await joined_alone(m, m.wanted.nodes)
    if m.wanted.pod_cidrs:
        figures, problems = await with_and_without_pod_cidrs(m)
    else:
        figures, problems = await joined_with_ours(m, m.wanted.nodes)
    # What counts: the same machine's time for the joins alone is the unit.
    unit = alone["joins only: all joined s"]
    compared = {"untainted / joins only": ratio(figures["all untainted s"], unit)}
    if m.wanted.certificates:
        compared["issued / joins only"] = ratio(figures["all issued s"], unit)
    if m.wanted.pod_cidrs:
        compared |= {
            name: figures[name] for name in (RATIO, cpu.RATIO, cpu.IN_LOOPS, cpu.IN_KUBELETS, cpu.UNTIL_QUIET)
        }
    return m.run("burst", compared | alone | figures, problems)


async def single(m: Measuring) -> Run:
    """One node at a time, five a second at most; the next one begins when the last one is untainted."""
    alone = await joined_alone(m, m.wanted.singles, one_at_a_time=True)
    del alone["joins only: all joined s"]
    figures, problems = await joined_with_ours(m, m.wanted.singles, one_at_a_time=True)
    for name in ("all untainted s", "all joined s", "all issued s"):  # it is the pace that these would tell
        figures.pop(name, None)
    return m.run("single", figures | alone, problems)


async def steady(m: Measuring) -> Run:
    """Nodes that have all they need send heartbeats: nothing is to be written, little to be spent."""
    stage, wanted = m.stage, m.wanted
    async with present(stage, fleet(m.name, wanted.steady_nodes)) as names:
        await m.joined(names, alone=True)
        alone = await _beating(m, names, None, "heartbeats only: ")
        async with m.controlled() as controlled:
            prepared = await stage.kubelets.untainted(names, seconds=wanted.patience_seconds)
            prepared = await quiet(stage) and prepared
            mark = stage.control_plane.audit_mark()
            figures = await _beating(m, names, controlled, "")
            asked = costs.requests(stage, mark)
    unwanted = {what: n for what, n in asked.items() if costs.is_write(what) and not costs.is_lease(what)}
    problems = [f"writes though nothing was to do: {unwanted}"] if unwanted else []
    if not prepared:
        problems.append("the nodes were not all initialized and quiet before the heartbeats")
    leases = sum(n for what, n in asked.items() if costs.is_lease(what))
    first = {
        "Kubernetes: writes": float(sum(unwanted.values())),
        "Kubernetes: requests for the Lease per second": leases / wanted.steady_seconds,
        "Kubernetes: other requests": float(asked.total() - leases - sum(unwanted.values())),
    }
    return m.run("steady", first | figures | alone, problems)


async def _beating(m: Measuring, names: list[str], controlled: Controlled | None, prefix: str) -> Figures:
    before = await costs.read(m.stage, controlled)
    beats = await m.stage.kubelets.beat(
        names, seconds=m.wanted.steady_seconds, every_seconds=m.wanted.heartbeat_seconds
    )
    after = await costs.read(m.stage, controlled)
    figures = {"heartbeats per second": beats.beats / beats.seconds}
    for name, value in costs.process_figures(before, after).items():
        if name.endswith("CPU s"):
            figures[f"{prefix}{name} per second"] = value / beats.seconds
        elif not prefix:
            figures[name] = value
    return figures


async def change(m: Measuring) -> Run:
    """One machine after the other gets another external address: how soon does its Node show it?"""
    stage, wanted = m.stage, m.wanted
    machines = fleet(m.name, min(wanted.changes, 50), ("hcloud",))
    async with m.controlled() as controlled, present(stage, machines) as names:
        await m.joined(names, alone=False)
        settled = await quiet(stage)
        await stage.machines.reset_calls()
        before = await costs.read(stage, controlled)
        shown = [await _shown(stage, machines[n % len(machines)], n) for n in range(wanted.changes)]
        took = [seconds for seconds in shown if seconds is not None]
        await quiet(stage)
        after = await costs.read(stage, controlled)
        figures = {
            "shown p50 ms": 1000 * percentile(took, 50),
            "shown p99 ms": 1000 * percentile(took, 99),
            "never shown": float(wanted.changes - len(took)),
            **costs.per_node("Kubernetes", costs.requests(stage, before.audit), wanted.changes),
            **costs.per_node("Talos", await costs.calls(stage), wanted.changes),
            **costs.process_figures(before, after),
        }
    problems = [] if settled else ["the services were not quiet before the changes"]
    if missing := wanted.changes - len(took):
        problems.append(f"{missing} changes were not on their Node after {_CHANGE_SECONDS} s")
    told = {name.replace("per node", "per change"): value for name, value in figures.items()}
    return m.run("change", told, problems)


async def _shown(stage: Stage, machine: Machine, number: int) -> float | None:
    """Seconds from telling a machine its other address until its Node shows it; None if it never does."""
    addresses, external = elsewhere(machine, number)
    await stage.kubelets.expect({machine.name: external})
    begun = time.time()
    await stage.machines.change(machine.id, addresses=addresses)
    shown = await stage.kubelets.shown({machine.name: external}, seconds=_CHANGE_SECONDS)
    return shown[machine.name] - begun if machine.name in shown else None


MEASURES: Final[dict[Scenario, Measure]] = {
    "burst": burst,
    "single": single,
    "steady": steady,
    "change": change,
    "rules": rules,
    "certificates": certificates,
    "early": early,
    "pod-cidrs-killed": pod_cidrs_killed,
}
