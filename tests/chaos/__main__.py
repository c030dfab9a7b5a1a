"""`python -m tests.chaos`: random pairs of faults on a real cluster (`make chaos ARGS="..."`)."""

import random
import sys
import tempfile
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from tests.chaos.fault import BOUND_SECONDS
from tests.chaos.faults import FAULTS, get_fault
from tests.chaos.mutants import MUTANTS
from tests.chaos.results import Results, list_missed, render_recoveries, render_violations
from tests.chaos.schedule import plan_alone, plan_pair
from tests.chaos.sitting import Sitting
from tests.interruptible_run import run_until_signal

_FAULT = click.Choice([fault.name for fault in FAULTS])
_MUTANT = click.Choice([mutant.name for mutant in MUTANTS])
_names = partial(click.option, multiple=True, metavar="NAME")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, help="Number of random pairs.")
@click.option("--seed", type=int, help="Seed of the workload and the schedules. Default: a random one.")
@click.option(
    "--only", type=click.IntRange(1), multiple=True, help="Run only this number of the pairs (repeatable)."
)
@click.option("--alone", is_flag=True, help="Run each fault alone instead of pairs, or each --fault.")
@_names("--fault", "faults", type=_FAULT, help="With --alone: this fault (repeatable).")
@click.option("--mutants", is_flag=True, help="Run defective copies of the services: each must be caught.")
@_names("--mutant", "mutant_names", type=_MUTANT, help="With --mutants: this one (repeatable).")
@click.option("--list", "listing", is_flag=True, help="List the faults.")
@click.option(
    "--resume",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Results file, a line of JSON per run. Runs that it contains are not repeated.",
)
@click.option(
    "--logs", type=click.Path(file_okay=False, path_type=Path), help="Directory for logs of the runs."
)
@click.option(
    "--keep-logs", is_flag=True, help="Keep the logs of all runs, not only of those with a violation."
)
def main(
    *,
    runs: int,
    seed: int | None,
    only: tuple[int, ...],
    alone: bool,
    faults: tuple[str, ...],
    mutants: bool,
    mutant_names: tuple[str, ...],
    listing: bool,
    file: Path | None,
    logs: Path | None,
    keep_logs: bool,
) -> None:
    """Inject random pairs of faults while nodes join, change, leave and return, and check the invariants.

    A seed repeats the workload and the schedule of faults. It does not repeat how the steps of processes
    and servers interleave: a violation may need several runs of its seed.

    Exit status 0: no violation; 1: a violation, or a run whose cluster did not start; 130: interrupted.
    """
    if (faults and not alone) or (mutant_names and not mutants):
        raise click.UsageError("--fault needs --alone, and --mutant needs --mutants")
    console = Console(highlight=False, markup=False, soft_wrap=True)  # messages name keys in brackets
    if listing:
        for fault in FAULTS:
            console.print(f"{fault.name:38} recovers within {BOUND_SECONDS:g} s  {', '.join(fault.modes)}")
        return
    seed = random.randrange(10_000) if seed is None else seed
    directory = (logs or Path(tempfile.mkdtemp(prefix="talos-ccm-chaos-"))).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    results = Results(file or directory / "results.jsonl")
    console.print(f"seed {seed}; results in {results.file}")
    sitting = Sitting(results=results, directory=directory, keep_logs=keep_logs, report=console.print)
    if mutants:
        schedules = [each.plan(seed) for each in MUTANTS if not mutant_names or each.name in mutant_names]
    elif alone:
        named = [get_fault(name) for name in faults] or FAULTS
        schedules = [plan_alone(seed, number, fault) for number, fault in enumerate(named, 1)]
    else:
        schedules = [plan_pair(seed, number) for number in only or range(1, runs + 1)]
    is_complete = run_until_signal(lambda: sitting.run(schedules))
    if not is_complete:
        console.print("interrupted: every process is stopped, and the results file has the complete runs")
    missed = list_missed(results.records)
    if mutants:
        console.print(f"not caught: {', '.join(missed) or 'none'}")
    else:
        console.print(render_recoveries(results.judged))
        console.print(render_violations(results.judged))
    if sitting.not_run:
        again = f"--seed {seed} --resume {results.file}"
        console.print(f"not run: {', '.join(sitting.not_run)}. Repeat the call with {again}")
    violating = not mutants and any(record.violations for record in results.judged)
    has_failed = bool(sitting.not_run or missed or violating)
    sys.exit(1 if has_failed else 0 if is_complete else 130)


if __name__ == "__main__":
    main(prog_name="make chaos ARGS=...")
