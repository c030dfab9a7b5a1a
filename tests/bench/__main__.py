"""`python -m tests.bench`: speed and cost on a real control plane (`make bench ARGS="..."`)."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from libs.testbed.mixed_fleet import MAX_NODES
from tests.bench.bench_options import (
    AGAINST_MODES,
    DEFAULT_MODES,
    MODES,
    SCENARIOS,
    BenchOptions,
)
from tests.bench.figures import BenchRun
from tests.bench.option_checks import check_writable, make_options, parse_sizes
from tests.bench.results import BenchResults, InvalidResults, decode_results, encode_results, select_scenarios
from tests.bench.scale_plot import draw_scale
from tests.bench.tables import format_host, render_comparison, render_results

_DEFAULT = BenchOptions()
_FILE_WIDTH = 160
F = TypeVar("F", bound=Callable[..., object])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _count_option(
    name: str, default: int, text: str, *, least: int = 1, most: int = MAX_NODES
) -> Callable[[F], F]:
    return click.option(name, type=click.IntRange(least, most), default=default, show_default=True, help=text)


def _seconds_option(
    name: str, field: str, text: str, *, least: float = 1, metavar: str | None = None
) -> Callable[[F], F]:
    return click.option(
        name,
        field,
        type=click.FloatRange(min=least),
        default=getattr(_DEFAULT, field),
        show_default=True,
        metavar=metavar,
        help=text,
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("scenarios", nargs=-1, type=click.Choice(SCENARIOS), metavar="[SCENARIO]...")
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
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    metavar="PROGRAM",
    help="burst, single: also measure this controller, which takes the reference's flags, and print ratios.",
)
@_count_option("--runs", _DEFAULT.runs, "Runs of each scenario; the tables show medians.", most=100)
@_count_option("--nodes", _DEFAULT.nodes, "burst, leader-killed: nodes that join.")
@_count_option("--concurrency", _DEFAULT.concurrency, "Joins or requests at once; 0 = all.", least=0)
@click.option(
    "--rate",
    "per_second",
    type=click.FloatRange(min=0),
    default=0,
    help="burst: joins that start per second, at most; 0 = no limit.",
)
@_count_option("--singles", _DEFAULT.singles, "single: nodes that join, one after the other.")
@_count_option("--steady-nodes", _DEFAULT.steady_nodes, "steady: nodes that send heartbeats.")
@_seconds_option("--steady-seconds", "steady_seconds", "steady: duration.")
@_seconds_option(
    "--heartbeat-seconds",
    "heartbeat_seconds",
    "steady: interval between two heartbeats of a node.",
    least=0.1,
)
@_count_option("--changes", _DEFAULT.changes, "change: machines that change, one after the other.")
@_count_option("--rule-nodes", _DEFAULT.rule_nodes, "rules: existing nodes.", least=2)
@_count_option("--rule-changes", _DEFAULT.rule_changes, "rules: changes of the rule.", most=100)
@click.option(
    "--certificates",
    is_flag=True,
    help="burst, single: each kubelet also requests a serving certificate, which our services approve.",
)
@click.option(
    "--pod-cidrs",
    is_flag=True,
    help="burst: compare the burst with dual-stack pod CIDRs from ipam to the burst without ipam.",
)
@_count_option(
    "--certificate-nodes", _DEFAULT.certificate_nodes, "certificates, early: nodes that request certificates."
)
@click.option(
    "--sizes",
    default=",".join(map(str, _DEFAULT.sizes)),
    show_default=True,
    callback=lambda _context, _option, text: parse_sizes(text),
    help="scale: nodes of each burst.",
)
@_count_option(
    "--lease-seconds", _DEFAULT.lease_seconds, "leader-killed: duration of the watcher's Lease.", least=6
)
@_count_option("--soak-nodes", _DEFAULT.soak_nodes, "soak: nodes.", least=10)
@_count_option("--soak-hours", _DEFAULT.soak_hours, "soak: simulated hours.", most=10_000)
@_seconds_option(
    "--soak-hour-seconds", "soak_hour_seconds", "soak: seconds of a simulated hour; 3600 = no simulation."
)
@click.option(
    "--soak-faults", type=int, metavar="SEED", help="soak: two random faults of make chaos an hour."
)
@_seconds_option(
    "--patience",
    "patience_seconds",
    "Longest wait for nodes to lose their taint and for certificates to be issued.",
    metavar="SECONDS",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the results to this file.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.svg",
    help="scale: draw CPU per node and peak memory over the number of nodes.",
)
@click.option("--compare", type=_FILE, metavar="FILE", help="Then compare with the results in this file.")
@click.option(
    "--show", type=_FILE, metavar="FILE", help="Do not measure: show (or compare) the results in this file."
)
@click.option(
    "--profile",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Run each scenario once more with our processes under cProfile; write the profiles there.",
)
@click.option(
    "--keep-logs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Keep the logs of all processes, and the audit log.",
)
def main(
    json_file: Path | None, plot: Path | None, compare: Path | None, show: Path | None, **options: Any
) -> None:
    """Measure the speed and cost of our services on a real control plane with simulated machines.

    Scenarios: burst: many nodes join at once.  single: nodes join one after the other.  steady:
    initialized nodes send heartbeats.  change: the address of a machine changes.  rules: a rule for most
    nodes changes.  certificates: many nodes request their serving certificate at once.  early: each node
    files two requests before its Node exists.  pod-cidrs-killed: a burst with three replicas of ipam, of
    which the bench kills one; mode separate only.  leader-killed: each node files two requests at once,
    then the bench kills the leading watcher; not with --mode all-in-one-memory.  scale: bursts of growing
    size.  soak: simulated hours with changes, replaced nodes and reconnects, in which nothing may grow.
    Without an argument all run except the last six, which takes about ten minutes on two cores. The first
    run builds the control plane (six more minutes, needs Go).
    """
    console = _open_console()
    errors = Console(stderr=True)
    old = _read_results(compare) if compare else None
    for option, file in (("--json", json_file), ("--plot", plot)):
        if file:
            check_writable(option, file)
    if plot and not show and "scale" not in options["scenarios"]:
        raise click.UsageError("--plot requires the scenario scale")
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
    if plot:
        _write_plot(plot, results)
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
    except InvalidResults as error:
        raise click.UsageError(f"{path}: {error}") from None


def _write_plot(file: Path, results: BenchResults) -> None:
    plot = draw_scale(results)
    if not plot:
        raise click.UsageError(f"--plot {file}: these results have no run of the scenario scale")
    file.write_text(plot)


def _measure(options: BenchOptions, console: Console) -> BenchResults:
    from libs.testbed.child_process import ChildExited
    from libs.testbed.control_plane.build import BuildError
    from tests.bench.host import read_host
    from tests.bench.other_controller import OtherControllerFailed
    from tests.bench.run_bench import run_bench

    runs: list[BenchRun] = []
    begun_at, host = datetime.now(UTC), read_host()

    async def run_until_signal() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):  # asyncio handles Ctrl-C
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await run_bench(options, console, runs)

    complete = True
    try:
        asyncio.run(run_until_signal())
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(f"Interrupted: every process stopped; {len(runs)} runs are complete.")
        complete = False
    except (ChildExited, BuildError, OtherControllerFailed) as error:
        raise click.ClickException(str(error)) from None
    return BenchResults(begun_at=begun_at, host=host, wanted=options, runs=tuple(runs), complete=complete)


if __name__ == "__main__":
    main(prog_name="make bench ARGS=...")
