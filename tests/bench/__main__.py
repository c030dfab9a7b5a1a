"""`python -m tests.bench`: speed and cost on a real control plane (`make bench ARGS="..."`)."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from libs.testbed.child_process import ChildExited
from libs.testbed.control_plane.build import BuildError
from tests.bench.figures import BenchRun
from tests.bench.options import (
    AGAINST_MODES,
    DEFAULT_MODES,
    MODES,
    SCENARIOS,
    BenchOptions,
    add_flags,
    check_writable,
    make_options,
)
from tests.bench.results import (
    BenchResults,
    decode_results,
    encode_results,
    read_host,
    select_scenarios,
)
from tests.bench.run_bench import run_bench
from tests.bench.tables import format_host, render_comparison, render_results
from tests.interruptible_run import run_until_signal

_FILE_WIDTH = 160
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_NEW_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_PROGRAM = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("scenarios", nargs=-1, type=click.Choice(list(SCENARIOS)), metavar="[SCENARIO]...")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(MODES),
    help="How our services run, or the flags of --against; can be repeated.  "
    f"[default: {', '.join(DEFAULT_MODES)}; with --against also {', '.join(AGAINST_MODES)}]",
)
@click.option(
    "--against",
    type=_PROGRAM,
    metavar="PROGRAM",
    help="burst, single: also measure this controller, which takes the reference's flags, and print ratios.",
)
@add_flags
@click.option("--json", "json_file", type=_NEW_FILE, help="Write the results to this file.")
@click.option("--compare", type=_FILE, metavar="FILE", help="Then compare with the results in this file.")
@click.option(
    "--show", type=_FILE, metavar="FILE", help="Do not measure: show (or compare) the results in this file."
)
@click.option(
    "--keep-logs",
    type=_DIRECTORY,
    metavar="DIRECTORY",
    help="Keep the logs of all processes, and the audit log.",
)
def main(json_file: Path | None, compare: Path | None, show: Path | None, **options: Any) -> None:
    """Measure the speed and cost of our services on a real control plane with simulated machines.

    Scenarios: burst: many nodes join at once.  single: nodes join one after the other.  steady:
    initialized nodes send heartbeats.  change: the address of a machine changes.  rules: a rule for most
    nodes changes.  certificates: many nodes request their serving certificate at once.  soak: simulated
    hours with changes, replaced nodes and reconnects, in which nothing may grow. Without an argument all run
    except the last two, which takes about ten minutes on two cores. The first run builds the control plane
    (six more minutes, needs Go).
    """
    console = _open_console()
    errors = Console(stderr=True)
    old = _read_results(compare) if compare else None
    if json_file:
        check_writable("--json", json_file)
    results = (
        select_scenarios(_read_results(show), options["scenarios"])
        if show
        else _measure(make_options(options), errors)
    )
    console.print(render_results(results))
    console.print(format_host(results), soft_wrap=True, highlight=False)
    if old is not None:
        console.print(render_comparison(old, results))
    if json_file:
        json_file.write_bytes(encode_results(results))
    for problem in results.problems:
        errors.print(f"[red]failed:[/] {problem}", highlight=False)
    if not results.complete:
        errors.print("[red]not complete:[/] interrupted")
    sys.exit(1 if results.problems else 0 if results.complete else 130)


def _open_console() -> Console:
    """Output for a terminal, or wide enough for a file: Rich would break it after 80 characters."""
    is_sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_sized else _FILE_WIDTH)


def _read_results(path: Path) -> BenchResults:
    try:
        return decode_results(path.read_bytes())
    except msgspec.DecodeError as error:
        raise click.UsageError(f"{path}: not a result of this bench: {error}") from None


def _measure(options: BenchOptions, console: Console) -> BenchResults:
    runs: list[BenchRun] = []
    begun_at, host = datetime.now(UTC), read_host()

    try:
        complete = run_until_signal(lambda: run_bench(options, console, runs))
    except (ChildExited, BuildError) as error:
        raise click.ClickException(str(error)) from None
    if not complete:
        console.print(f"Interrupted: every process stopped; {len(runs)} runs are complete.")
    return BenchResults(begun_at=begun_at, host=host, wanted=options, runs=tuple(runs), complete=complete)


if __name__ == "__main__":
    main(prog_name="make bench ARGS=...")
