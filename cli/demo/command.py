"""`talos-ccm demo`: its words and its exit status."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path

import click
from rich.console import Console

from cli.demo.cast import MOST


@click.command(short_help="Watch simulated Talos nodes join a cluster.")
@click.option(
    "--nodes", type=click.IntRange(1, MOST), default=20, show_default=True, help="How many nodes join."
)
@click.option(
    "--all-in-one/--separate",
    default=False,
    help="Run the services in one process, or as separate processes over NATS (the default).",
)
@click.option(
    "--real",
    is_flag=True,
    help="Use the real kube-apiserver, etcd and kube-controller-manager, built from source at the first run, "
    "and Talos machines on COSI's own server; otherwise both are simulated.",
)
@click.option(
    "--bus",
    type=click.Choice(["nats", "memory"]),
    default="nats",
    show_default=True,
    help="What carries the messages; in this version: nats.",
)
@click.option(
    "--exit-when-ready",
    is_flag=True,
    help="End when every node is ready (status 0) or patience is over (status 1), instead of at Ctrl-C.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the nodes.",
)
@click.option(
    "--keep-logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the logs, configurations and audit log of all parts in this directory (new or empty).",
)
def demo(
    *,
    nodes: int,
    all_in_one: bool,
    real: bool,
    bus: str,
    exit_when_ready: bool,
    patience: float,
    keep_logs: Path | None,
) -> None:
    """Let simulated Talos nodes join a Kubernetes cluster, and watch them become usable.

    Everything runs on this machine, on loopback addresses, and is gone when the demo ends. With --real the
    first run builds the control plane, which needs Go and takes some minutes.
    """
    if bus == "memory":
        raise click.UsageError("--bus memory: nobody outside hears that bus, so there is nothing to show yet")
    if keep_logs is not None:
        _take(keep_logs)
    import cli.demo.run as running  # noqa: PLC0415 - `--help` need not load all of it

    wanted = running.Wanted(
        nodes=nodes,
        real=real,
        all_in_one=all_in_one,
        exit_when_ready=exit_when_ready,
        patience_seconds=patience,
        keep_logs=keep_logs,
    )
    try:
        all_ready = asyncio.run(_until_told_to_end(running.demo(wanted, Console())))
    except (ExceptionGroup, RuntimeError, OSError) as error:
        if not (words := _foreseen(error)):
            raise
        raise click.ClickException("\n".join(words)) from None
    except (KeyboardInterrupt, _Signalled) as told:
        kept = f"the files are in {keep_logs}" if keep_logs else "every file removed"
        click.echo(f"\nEnded: every process stopped, {kept}.", err=True)
        sys.exit(128 + (told.number if isinstance(told, _Signalled) else signal.SIGINT))
    sys.exit(0 if all_ready else 1)


class _Signalled(Exception):
    """Told to end by a signal other than Ctrl-C's."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


async def _until_told_to_end(running: Coroutine[None, None, bool]) -> bool:
    """`kill` and a closed terminal end the demo as orderly as Ctrl-C does, which asyncio sees to."""
    loop = asyncio.get_running_loop()
    told: list[signal.Signals] = []
    task = asyncio.ensure_future(running)

    def end(number: signal.Signals) -> None:
        if not told:  # a second one must not cut the clean-up short
            task.cancel()
        told.append(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if told:
            raise _Signalled(told[0]) from None
        raise


def _take(directory: Path) -> None:
    """Make the directory for --keep-logs; what an earlier run left there would be taken for this one's."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        taken = any(directory.iterdir())
    except OSError as error:
        raise click.UsageError(f"--keep-logs {directory}: {error.strerror}") from None
    if taken:
        raise click.UsageError(f"--keep-logs {directory}: not empty; name a new directory")


def _foreseen(error: Exception) -> list[str]:
    """What to say of an error that needs no traceback; empty if one of them does."""
    from libs.testbed.children import ChildDied  # noqa: PLC0415 - as above
    from libs.testbed.control_plane.build import BuildError  # noqa: PLC0415
    from libs.testbed.kubelets import Refused  # noqa: PLC0415

    if isinstance(error, ExceptionGroup):
        parts = [_foreseen(part) for part in error.exceptions]
        return [words for part in parts for words in part] if all(parts) else []
    return [str(error)] if isinstance(error, ChildDied | BuildError | Refused | OSError) else []
