"""Initialized nodes: the scenarios `steady` (only heartbeats), `change` (addresses) and `rules` (a label)."""

import math
import time
from pathlib import Path
from typing import Final

from libs.testbed.kubelets_in_go import KubeletsInGo
from libs.testbed.machine_fleet import SimMachineFacts
from libs.testbed.pki import write_private
from tests.bench import costs
from tests.bench.bench_cluster import BenchServices, wait_until_quiet
from tests.bench.figures import BenchRun, Figures, compute_percentile, compute_times
from tests.bench.measurement import Measurement, make_fleet, move_external_address, run_machines

_CHANGE_SECONDS: Final = 30
_LABEL: Final = "tests.bench.example.com/revision"
_SPARED: Final = "metal"  # the rule does not select nodes of this platform: their Nodes must not be written
_PATIENCE_SECONDS: Final = 60


async def measure_steady(m: Measurement) -> BenchRun:
    """Initialized nodes send heartbeats: the services must write nothing and use little CPU."""
    stage, wanted = m.stage, m.options
    async with run_machines(stage, make_fleet(m.name, wanted.steady_nodes)) as names:
        await m.join_nodes(names, alone=True)
        alone = await _measure_heartbeats(m, names, None, "heartbeats only: ")
        async with m.start_services() as controlled:
            prepared = await stage.kubelets.wait_until_untainted(names, seconds=wanted.patience)
            prepared = await wait_until_quiet(stage) and prepared
            mark = stage.control_plane.audit_mark()
            figures = await _measure_heartbeats(m, names, controlled, "")
            asked = costs.count_requests(stage, mark)
    unwanted = {what: n for what, n in asked.items() if costs.is_write_request(what)}
    problems = [] if prepared else ["not all nodes were initialized and idle before the heartbeats"]
    leases = sum(n for what, n in asked.items() if costs.is_lease_request(what))
    first = {
        "Kubernetes: writes": float(sum(unwanted.values())),
        **{f"Kubernetes: {what}": float(n) for what, n in unwanted.items()},
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
    changes = m.options.changes
    machines = make_fleet(m.name, min(changes, 50), ("hcloud",))
    async with m.start_services() as controlled, run_machines(m.stage, machines) as names:
        await m.join_nodes(names, alone=False)
        async with costs.measure_costs(m.stage, controlled) as cost:
            shown = [await _change_address(m, machines[n % len(machines)], n) for n in range(changes)]
    figures = compute_times("shown", shown, 0.0)
    del figures["all shown s"]  # one after the other
    return m.make_run("change", figures | cost.compute_figures(changes, "change"), cost.problems)


async def _change_address(m: Measurement, machine: SimMachineFacts, number: int) -> tuple[float, float]:
    """When the machine changed, and when its Node had the address; 0 if it never has it."""
    addresses, external = move_external_address(machine, number)
    await m.stage.kubelets.expect_texts({machine.name: external})
    begun = time.time()
    await m.stage.machines.change_machine(machine.id, addresses=addresses)
    shown = await m.stage.kubelets.wait_until_shown({machine.name: external}, seconds=_CHANGE_SECONDS)
    return begun, shown.get(machine.name, 0.0)


async def measure_rule_changes(m: Measurement) -> BenchRun:
    """A rule's label gets another value: measure the time until all its nodes have it, and the writes."""
    stage, wanted = m.stage, m.options
    file = stage.run_dir / f"{m.name}.yaml"
    write_rule(file, revision=0)
    machines = make_fleet(m.name, wanted.rule_nodes)
    async with (
        m.start_services(f"--cloud-config={file}") as controlled,
        run_machines(stage, machines) as names,
    ):
        await m.join_nodes(names, alone=False)
        async with costs.measure_costs(stage, controlled) as cost:
            took = [
                await _apply_rule(stage.kubelets, file, machines, revision)
                for revision in range(1, wanted.rule_changes + 1)
            ]
    changed = sum(map(len, took))
    writes = sum(n for what, n in cost.requests.items() if costs.is_write_request(what))
    figures = compute_rule_figures([seconds for each in took for seconds in each])
    figures["Kubernetes: writes per changed node"] = writes / changed
    return m.make_run("rules", figures | cost.compute_figures(changed, "changed node"), cost.problems)


def write_rule(file: Path, *, revision: int) -> None:
    """Replace the file of --cloud-config atomically."""
    text = (
        "transformations:\n"
        "  - name: bench\n"
        "    nodeSelector:\n"
        f"      - matchExpressions: [{{key: platform, operator: NotIn, values: [{_SPARED}]}}]\n"
        f'    labels: {{{_LABEL}: "{{{{ .Platform }}}}-r{revision}"}}\n'
    )
    write_private(file, text.encode())


def compute_expected_labels(machines: list[SimMachineFacts], revision: int) -> dict[str, str]:
    """The value of the rule's label on each node that the rule selects."""
    platforms = {machine.name: machine.platform.platform for machine in machines if machine.platform}
    return {name: f"{platform}-r{revision}" for name, platform in platforms.items() if platform != _SPARED}


async def _apply_rule(
    kubelets: KubeletsInGo, file: Path, machines: list[SimMachineFacts], revision: int
) -> list[float | None]:
    """Seconds from writing the file until each node has its label; None for a node that never has it."""
    labels = compute_expected_labels(machines, revision)
    await kubelets.expect_texts(labels)
    begun = time.time()
    write_rule(file, revision=revision)
    shown = await kubelets.wait_until_shown(labels, seconds=_PATIENCE_SECONDS)
    return [shown[name] - begun if name in shown else None for name in labels]


def compute_rule_figures(took: list[float | None]) -> Figures:
    """Times of all nodes over all changes of the rule; the promise is about the last node."""
    applied = [seconds for seconds in took if seconds is not None]
    return {
        "all applied s": max(applied, default=math.nan),
        "applied p50 s": compute_percentile(applied, 50),
        "first applied s": min(applied, default=math.nan),
        "never applied": float(len(took) - len(applied)),
    }
