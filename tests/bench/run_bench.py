"""Runs the selected scenarios and prints the progress; removes all files and processes."""

import io
import pstats
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from libs.testbed.child_process import ChildExited, make_directory
from libs.testbed.command_channel import CommandRejected
from libs.testbed.kubelets_in_go import ApproveEverything, GoNodeJoin
from libs.testbed.run_directory import open_run_directory
from tests.bench.bench_cluster import OTHER_CONTROLLER, BenchCluster, start_cluster
from tests.bench.certificates import measure_certificates
from tests.bench.changes import measure_address_change, measure_rule_changes, measure_steady
from tests.bench.figures import BenchRun
from tests.bench.joins import measure_burst, measure_single
from tests.bench.measurement import Measure, Measurement, make_fleet, run_machines
from tests.bench.options import AGAINST_MODES, SCENARIOS, BenchOptions, Mode, Scenario
from tests.bench.other_controller import OtherControllerFailed
from tests.bench.soak import measure_soak
from tests.interruptible_run import list_messages

_WARM_UP_NODES: Final = 100
_JOIN_SECONDS: Final = 60
_TOP_FUNCTIONS: Final = 20
# Each starts its nodes, measures, and deletes them.
MEASURE_BY_SCENARIO: Final[Mapping[Scenario, Measure]] = {
    "burst": measure_burst,
    "single": measure_single,
    "steady": measure_steady,
    "change": measure_address_change,
    "rules": measure_rule_changes,
    "certificates": measure_certificates,
    "soak": measure_soak,
}


async def run_bench(wanted: BenchOptions, console: Console, runs: list[BenchRun]) -> None:
    """Measure all; appends each run when it is complete, so that Ctrl-C loses only the current one.

    On cancellation it ends every process that it started. A run in which a process exited has no figures and
    is the last.
    """
    began = time.monotonic()

    def report(what: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.0f} s[/]  {what}", highlight=False, soft_wrap=True)

    with open_run_directory("bench", wanted.keep_logs) as run_dir:
        async with start_cluster(run_dir, report) as stage:

            def make_measurement(what: str, mode: Mode, number: int) -> Measurement:
                name = f"{what}-{mode}-{number}"
                return Measurement(
                    stage=stage, options=wanted, mode=mode, number=number, name=name, report=report
                )

            report(f"warming up: {_WARM_UP_NODES} nodes join and leave")
            await _warm_up_cluster(stage, wanted)
            if against := next((mode for mode in wanted.modes if mode in AGAINST_MODES), None):
                report(f"checking {wanted.against}: one node joins")
                await check_other_controller(make_measurement("check", against, 0))
            for scenario, mode, number in plan_runs(wanted):
                with console.status(f"{scenario}, {mode}, run {number} of {wanted.runs}"):
                    measuring = make_measurement(scenario, mode, number)
                    run = await measure_run(measuring, scenario, MEASURE_BY_SCENARIO[scenario])
                runs.append(run)
                report(f"{scenario}, {mode}, run {number} of {wanted.runs}: {format_headline(run)}")
                if not run.figures:
                    return
            if wanted.profile is not None:
                await _profile(stage, wanted, wanted.profile, console)


def plan_runs(wanted: BenchOptions) -> list[tuple[Scenario, Mode, int]]:
    """The runs in order; modes alternate within a scenario, so that other load affects them equally.

    Every second round has the modes in reverse order, so that none always follows the same other one.
    """
    return [
        (scenario, mode, number)
        for scenario in wanted.scenarios
        for number in range(1, wanted.runs + 1)
        for mode in (wanted.modes if number % 2 else wanted.modes[::-1])
        if mode not in AGAINST_MODES or SCENARIOS[scenario].is_comparable
    ]


async def measure_run(measuring: Measurement, scenario: Scenario, measure: Measure) -> BenchRun:
    """One run; if a process exits or is unusable, the run has no figures, and its problem names it.

    The same applies if kube-apiserver keeps rejecting requests of the kubelets.
    """
    try:
        return await measure(measuring)
    except (CommandRejected, OtherControllerFailed) as error:
        return measuring.make_run(scenario, {}, [str(error)])
    except ExceptionGroup as group:
        failed, others = group.split((ChildExited, CommandRejected))
        if failed is None or others is not None:
            raise
        return measuring.make_run(scenario, {}, list_messages(failed))


def format_headline(run: BenchRun) -> str:
    """The first three figures and every problem, in one line."""
    figures = ", ".join(f"{name} {value:.3g}" for name, value in list(run.figures.items())[:3])
    return figures + "".join(f" [red]{problem.splitlines()[0]}[/]" for problem in run.problems)


async def _warm_up_cluster(stage: BenchCluster, wanted: BenchOptions) -> None:
    """Let some nodes join and leave: a new API server and a new signer handle the first ones slowly."""
    asking = wanted.certificates or "certificates" in wanted.scenarios
    async with run_machines(stage, make_fleet("warm-up", _WARM_UP_NODES), certificates=int(asking)) as names:
        await stage.kubelets.join(names, concurrency=wanted.concurrency, until_untainted=False)
        if asking:
            async with ApproveEverything.start(stage.run_dir / "warm-up", stage.control_plane):
                await stage.kubelets.file_requests(names, concurrency=wanted.concurrency)


async def _profile(stage: BenchCluster, wanted: BenchOptions, directory: Path, console: Console) -> None:
    for scenario in wanted.scenarios:
        for mode in (mode for mode in wanted.modes if mode not in AGAINST_MODES):
            name = f"{scenario}-{mode}-profiled"
            into = make_directory((directory / name).resolve())
            with console.status(f"{scenario}, {mode}, under the profiler"):
                await MEASURE_BY_SCENARIO[scenario](
                    Measurement(stage=stage, options=wanted, mode=mode, number=0, name=name, profiles=into)
                )
            for profile in sorted(into.rglob("*.prof")):
                which = profile.relative_to(into).with_suffix("")
                console.print(f"\n[bold]{scenario}, {mode}: {which}[/] (written to {profile})")
                console.print(format_top_functions(profile), highlight=False, markup=False, soft_wrap=True)


def format_top_functions(profile: Path) -> str:
    """The functions with the highest own time."""
    text = io.StringIO()
    stats = pstats.Stats(str(profile), stream=text)
    stats.strip_dirs().sort_stats(pstats.SortKey.TIME).print_stats(_TOP_FUNCTIONS)
    kept = [line for line in text.getvalue().splitlines() if line.strip()]
    return "\n".join(kept)


async def check_other_controller(m: Measurement) -> None:
    """Let one node join. Raises OtherControllerFailed with the reason and the last lines of the program."""
    asking = m.options.certificates
    machines_running = run_machines(m.stage, make_fleet(m.name, 1), certificates=int(asking))
    try:
        async with m.start_controller() as running, machines_running as names:
            joins = await m.join_nodes(names, alone=False, certificates=asking, at_most=_JOIN_SECONDS)
            problem, lines = (
                find_first_join_problem(joins.nodes[0]),
                running.list_processes()[OTHER_CONTROLLER].tail(),
            )
    except ExceptionGroup as group:
        ended, others = group.split(ChildExited)
        if ended is None or others is not None:
            raise
        raise OtherControllerFailed(str(ended.exceptions[0])) from group
    if problem:
        raise OtherControllerFailed(f"--against {m.options.against}: {problem}. Its last lines:\n{lines}")


def find_first_join_problem(node: GoNodeJoin) -> str:
    """Return what a controller did not do for the first node; "" if it did all."""
    if not node.untainted:
        return f"it left the taint on the first node for {_JOIN_SECONDS} s (controller cloud-node)"
    if node.request and not node.request.issued:
        done = "approved" if node.request.approved else "denied" if node.request.denied else "not approved"
        return f"the first certificate was {done} and not issued (controller node-csr-approval)"
    return ""
