"""`python -m bench`: what the main job costs, on a real control plane. `make bench ARGS="..."` calls it."""

import asyncio
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from bench.bench_options import DEFAULT_MODES, DEFAULT_SCENARIOS, MODES, SCENARIOS, SEPARATE, BenchOptions
from bench.figures import BenchRun
from bench.fleet import MAX_NODES
from bench.results import BenchResults, InvalidResults, decode_results, encode_results, select_scenarios
from bench.tables import format_host, render_comparison, render_results

_DEFAULT = BenchOptions()
F = TypeVar("F", bound=Callable[..., object])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _count_option(
    name: str, default: int, text: str, *, least: int = 1, most: int = MAX_NODES
) -> Callable[[F], F]:
    return click.option(name, type=click.IntRange(least, most), default=default, show_default=True, help=text)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("scenarios", nargs=-1, type=click.Choice(SCENARIOS), metavar="[SCENARIO]...")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(MODES),
    help=f"How our services run; may be given several times.  [default: {', '.join(DEFAULT_MODES)}]",
)
@_count_option("--runs", _DEFAULT.runs, "How often each is measured; medians are told.", most=100)
@_count_option("--nodes", _DEFAULT.nodes, "burst: how many join.")
@_count_option(
    "--concurrency", _DEFAULT.concurrency, "burst: how many join at the same time; 0 = all.", least=0
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0,
    help="burst: at most so many joins begin each second; 0 = no limit.",
)
@_count_option("--singles", _DEFAULT.singles, "single: how many join, one after the other.")
@_count_option("--steady-nodes", _DEFAULT.steady_nodes, "steady: how many nodes send heartbeats.")
@click.option(
    "--steady-seconds",
    type=click.FloatRange(min=1),
    default=_DEFAULT.steady_seconds,
    show_default=True,
    help="steady: for how long.",
)
@click.option(
    "--heartbeat-seconds",
    type=click.FloatRange(min=0.1),
    default=_DEFAULT.heartbeat_seconds,
    show_default=True,
    help="steady: from one heartbeat of a node to its next.",
)
@_count_option("--changes", _DEFAULT.changes, "change: how many machines change, one after the other.")
@_count_option("--rule-nodes", _DEFAULT.rule_nodes, "rules: how many nodes there are.", least=2)
@_count_option("--rule-changes", _DEFAULT.rule_changes, "rules: how often the rule changes.", most=100)
@click.option(
    "--certificates",
    is_flag=True,
    help="burst, single: each kubelet also asks for its serving certificate, and gets it from us.",
)
@click.option(
    "--pod-cidrs",
    is_flag=True,
    help="burst: our services also give dual-stack pod CIDRs; first the same burst without that.",
)
@_count_option("--certificate-nodes", _DEFAULT.certificate_nodes, "certificates, early: how many nodes ask.")
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=_DEFAULT.patience_seconds,
    show_default=True,
    metavar="SECONDS",
    help="How long nodes may take to lose their taint, and requests to be issued.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the results to this file.",
)
@click.option(
    "--compare", type=_FILE, metavar="FILE", help="Afterwards, compare with the results in this file."
)
@click.option(
    "--show", type=_FILE, metavar="FILE", help="Measure nothing: show (or compare) the results in this file."
)
@click.option(
    "--profile",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Run each once more with our processes under cProfile, and write that there.",
)
@click.option(
    "--keep-logs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Keep the logs of all parts, and the audit log.",
)
def main(json_file: Path | None, compare: Path | None, show: Path | None, **options: Any) -> None:
    """Measure what our services cost and how fast they are, on a real control plane with simulated machines.

    A scenario is one of these. burst: many nodes join at once.  single: one after the other.  steady:
    initialized nodes send heartbeats.  change: a machine's address changes.  rules: a rule about most nodes
    changes.  certificates: many nodes ask for their serving certificate at once.  early: they ask before
    their Node exists, each twice.  pod-cidrs-killed: a burst with three replicas of ipam, one of which is
    killed; separate only.  Without an argument all but the last three, which takes about ten minutes on
    two cores, and six more when the control plane is built first (needs Go).
    """
    console = Console()
    errors = Console(stderr=True)
    old = _read_results(compare) if compare else None
    if json_file:
        _check_writable(json_file)
    results = (
        select_scenarios(_read_results(show), options["scenarios"])
        if show
        else _measure(_make_options(options), errors)
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
        errors.print("[red]not complete:[/] told to end before all was measured")
    sys.exit(1 if results.problems else 0 if results.complete else 130)


def _make_options(options: dict[str, Any]) -> BenchOptions:
    if "separate" not in (options["modes"] or DEFAULT_MODES):
        for scenario in {*options["scenarios"]} & {*SEPARATE}:
            raise click.UsageError(f"{scenario} is measured with --mode separate only")
    return BenchOptions(
        scenarios=tuple(dict.fromkeys(options["scenarios"])) or DEFAULT_SCENARIOS,
        modes=tuple(dict.fromkeys(options["modes"])) or DEFAULT_MODES,
        runs=options["runs"],
        nodes=options["nodes"],
        concurrency=options["concurrency"],
        per_second=options["rate"],
        singles=options["singles"],
        steady_nodes=options["steady_nodes"],
        steady_seconds=options["steady_seconds"],
        heartbeat_seconds=options["heartbeat_seconds"],
        changes=options["changes"],
        rule_nodes=options["rule_nodes"],
        rule_changes=options["rule_changes"],
        certificates=options["certificates"],
        certificate_nodes=options["certificate_nodes"],
        pod_cidrs=options["pod_cidrs"],
        patience_seconds=options["patience"],
        profile=options["profile"],
        keep_logs=options["keep_logs"],
    )


def _read_results(path: Path) -> BenchResults:
    try:
        return decode_results(path.read_bytes())
    except InvalidResults as error:
        raise click.UsageError(f"{path}: {error}") from None


def _check_writable(json_file: Path) -> None:
    try:  # now: at the end it would cost all that was measured
        json_file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--json {json_file}: {error.strerror}") from None


def _measure(wanted: BenchOptions, console: Console) -> BenchResults:
    from bench.host import read_host  # noqa: PLC0415 - `--help` and `--show` need not load all of it
    from bench.run_bench import run_bench  # noqa: PLC0415
    from libs.testbed.child_process import ChildExited  # noqa: PLC0415
    from libs.testbed.control_plane.build import BuildError  # noqa: PLC0415

    runs: list[BenchRun] = []
    begun_at, host = datetime.now(UTC), read_host()

    async def until_told() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):  # Ctrl-C is asyncio's own affair
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await run_bench(wanted, console, runs)

    complete = True
    try:
        asyncio.run(until_told())
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(f"Ended: every process stopped; {len(runs)} runs were done.")
        complete = False
    except (ChildExited, BuildError) as error:
        raise click.ClickException(str(error)) from None
    return BenchResults(begun_at=begun_at, host=host, wanted=wanted, runs=tuple(runs), complete=complete)


if __name__ == "__main__":
    main(prog_name="make bench ARGS=...")
