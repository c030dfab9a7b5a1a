"""The scenario `rules`: the value in a rule for most nodes changes several times."""

import math
import time
from pathlib import Path
from typing import Final

from libs.testbed.kubelets_in_go import KubeletsInGo
from libs.testbed.machine_fleet import SimMachineFacts
from tests.bench import costs
from tests.bench.bench_cluster import wait_until_quiet
from tests.bench.figures import BenchRun, Figures, compute_percentile
from tests.bench.fleet import make_fleet
from tests.bench.measurement import Measurement, run_machines

_LABEL: Final = "tests.bench.example.com/revision"
_SPARED: Final = "metal"  # the rule does not select nodes of this platform: their Nodes must not be written
_MOST_WRITES: Final = 2  # promised, per changed node
_PATIENCE_SECONDS: Final = 60
_SECONDS_PROMISED: Final = 15  # until every node has the new value


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
        settled = await wait_until_quiet(stage)
        await stage.machines.reset_calls()
        before = await costs.read_costs(stage, controlled)
        took = [
            await _apply_rule(stage.kubelets, file, machines, revision)
            for revision in range(1, wanted.rule_changes + 1)
        ]
        settled = await wait_until_quiet(stage) and settled
        after = await costs.read_costs(stage, controlled)
        asked = costs.count_requests(stage, before.audit)
        changed = sum(map(len, took))
        figures = compute_rule_figures([seconds for each in took for seconds in each]) | {
            **costs.compute_per_node("Kubernetes", asked, changed),
            **costs.compute_per_node("Talos", await costs.count_calls(stage), changed),
            **costs.compute_process_figures(before, after),
        }
    figures["ours: CPU per changed node ms"] = 1000 * figures["ours: all CPU s"] / changed
    writes = sum(
        n for what, n in asked.items() if costs.is_write_request(what) and not costs.is_lease_request(what)
    )
    told = {name.replace("per node", "per changed node"): value for name, value in figures.items()}
    return m.make_run(
        "rules", told, find_rule_problems(figures, writes=writes, changed=changed, settled=settled)
    )


def write_rule(file: Path, *, revision: int) -> None:
    """Replace the file of --cloud-config atomically."""
    new = file.with_suffix(".new")
    new.write_text(
        "transformations:\n"
        "  - name: bench\n"
        "    nodeSelector:\n"
        f"      - matchExpressions: [{{key: platform, operator: NotIn, values: [{_SPARED}]}}]\n"
        f'    labels: {{{_LABEL}: "{{{{ .Platform }}}}-r{revision}"}}\n'
    )
    new.replace(file)


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


def find_rule_problems(figures: Figures, *, writes: int, changed: int, settled: bool) -> list[str]:
    """The promises that did not hold."""
    found = [] if settled else ["the services were not idle before the first change, or after the last"]
    if missing := figures["never applied"]:
        found.append(f"{missing:.0f} nodes did not have their label after {_PATIENCE_SECONDS} s")
    if figures["all applied s"] > _SECONDS_PROMISED:
        found.append(f"the last node had its label after more than {_SECONDS_PROMISED} s")
    if writes > _MOST_WRITES * changed:
        found.append(f"{writes} writes for {changed} changes of nodes")
    return found
