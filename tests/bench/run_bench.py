"""Runs the selected scenarios and prints the progress; removes all files and processes."""

import time
from collections.abc import Mapping
from typing import Final

from rich.console import Console

from libs.testbed.child_process import ChildExited
from libs.testbed.command_channel import CommandRejected
from libs.testbed.kubelets_in_go import ApproveEverything
from libs.testbed.run_directory import open_run_directory
from tests.bench.bench_cluster import BenchCluster, start_cluster
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
            report(f"warming up: {_WARM_UP_NODES} nodes join and leave")
            await _warm_up_cluster(stage, wanted)
            for scenario, mode, number in plan_runs(wanted):
                with console.status(f"{scenario}, {mode}, run {number} of {wanted.runs}"):
                    name = f"{scenario}-{mode}-{number}"
                    measuring = Measurement(
                        stage=stage, options=wanted, mode=mode, number=number, name=name, report=report
                    )
                    run = await measure_run(measuring, scenario, MEASURE_BY_SCENARIO[scenario])
                runs.append(run)
                report(f"{scenario}, {mode}, run {number} of {wanted.runs}: {format_headline(run)}")
                if not run.figures:
                    return


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
        failed, others = group.split((ChildExited, CommandRejected, OtherControllerFailed))
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
