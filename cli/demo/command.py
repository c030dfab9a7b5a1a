"""The click command `talos-ccm demo`, and its end: by itself, by a signal or with an error."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from cli.demo.demo_options import DEFAULT_RATE, MAX_NODES, MAX_REAL_TALOS_NODES, DemoOptions
from cli.demo.rule_values import read_rule_keys
from cli.progress import PROGRESS

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(short_help="Let simulated Talos nodes join a local cluster.")
@click.option(
    "--nodes",
    type=click.IntRange(1, MAX_NODES),
    default=20,
    show_default=True,
    help="Number of nodes that join.",
)
@click.option(
    "--bus",
    type=click.Choice(["nats", "memory"]),
    default="nats",
    show_default=True,
    help="Message bus between the services: a nats-server started by the demo, or the memory of one process. "
    "memory always runs all services in one process.",
)
@click.option(
    "--all-in-one/--separate",
    default=None,
    help="Run all services in one process, or each in its own process. Default: --separate with --bus nats, "
    "--all-in-one with --bus memory.",
)
@click.option(
    "--real",
    is_flag=True,
    help="Use the real kube-apiserver, etcd and kube-controller-manager, built from source at the "
    "first run, and Talos machines on COSI's own server. Default: both are simulated.",
)
@click.option(
    "--real-talos",
    is_flag=True,
    help="Run Talos's own API server (apid) for each machine, built from source at the first run. Requires "
    "Linux with root or user namespaces. The API server of Kubernetes is simulated, unless you add --real. "
    f"Limit: {MAX_REAL_TALOS_NODES} nodes.",
)
@click.option(
    "--cloud-config",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    metavar="FILE",
    help="Path to a --cloud-config file with rules for these nodes. The demo prints their results at "
    "the end and applies later changes of the file while the cluster runs.",
)
@click.option(
    "--exit-when-ready",
    is_flag=True,
    help="Exit 0 when every node is ready and has its certificate, except those that `ownership` excludes; "
    "otherwise exit 1, after --patience at the latest. Without this flag, the cluster runs until Ctrl-C.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="NODES",
    help=f"Number of nodes that join per second. Default: {DEFAULT_RATE:g}; with --exit-when-ready, as many "
    "as this computer can start.",
)
@click.option(
    "--patience",
    "patience_seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for each of two steps, after the last node has joined: all nodes ready, all "
    "certificates issued.",
)
@click.option(
    "--keep-logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep logs and configuration files in this directory (new or empty).",
)
def demo(**given: Any) -> None:
    """Start a local Kubernetes cluster, let simulated Talos nodes join it, and show how they become ready.

    Everything runs on this computer, on loopback addresses, and is deleted at the end. With --real, the
    first run builds the control plane, which requires Go and takes some minutes. With --real-talos, it builds
    Talos's API server, which takes one or two minutes.
    """
    options = DemoOptions(**given)
    if options.option_conflict:
        raise click.UsageError(options.option_conflict)
    with PROGRESS.show("Loading the demo"):
        if options.cloud_config is not None:
            read_rule_keys(options.cloud_config)  # reports a mistake before anything starts
        if options.keep_logs is not None:
            _create_log_directory(options.keep_logs)
        sys.exit(_run_to_exit_status(options))


def _run_to_exit_status(options: DemoOptions) -> int:
    """Run the demo and return its exit status.

    Raises ClickException for an error that needs no traceback.
    """
    from rich.console import Console  # noqa: PLC0415 - `--help` need not load all of it

    try:
        import cli.demo.run_demo as running  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("libs.testbed"):
            raise
        raise click.ClickException(
            "the demo needs the testbed, which the container image does not contain; in a checkout, run "
            "make demo"
        ) from None
    try:
        result = asyncio.run(_run_until_stopped(running.run_demo(options, Console())))
    except (ExceptionGroup, RuntimeError, OSError) as error:
        if not (words := _explain_error(error)):
            raise
        raise click.ClickException("\n".join(words)) from None
    except KeyboardInterrupt:  # before anything was started
        return 128 + signal.SIGINT
    if isinstance(result, signal.Signals) or not options.exit_when_ready:
        kept = f"logs are in {options.keep_logs}" if options.keep_logs else "all files deleted"
        click.echo(f"\nStopped all processes; {kept}.", err=True)
    return 128 + result if isinstance(result, signal.Signals) else int(not result)


async def _run_until_stopped(running: Coroutine[None, None, bool]) -> bool | signal.Signals:
    """Run the demo and return its result, or the signal that ended it.

    SIGTERM and SIGHUP end it as orderly as Ctrl-C does.
    """
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []
    task = asyncio.ensure_future(running)

    def end(number: signal.Signals) -> None:
        if not received:  # a second signal must not interrupt the clean-up
            task.cancel()
        received.append(number)

    for number in _ENDING_SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            return received[0]
        raise


def _create_log_directory(directory: Path) -> None:
    """Create the directory for --keep-logs.

    It must be empty: files of an earlier run would look like files of this one.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        taken = any(directory.iterdir())
    except OSError as error:
        raise click.UsageError(f"--keep-logs {directory}: {error.strerror}") from None
    if taken:
        raise click.UsageError(f"--keep-logs {directory}: not empty; use a new directory")


def _explain_error(error: Exception) -> list[str]:
    """Return the message of an error that needs no traceback; empty if any part needs one."""
    from libs.testbed.child_process import ChildExited  # noqa: PLC0415 - as above
    from libs.testbed.control_plane.build import BuildError  # noqa: PLC0415
    from libs.testbed.kubelets import RequestRejected  # noqa: PLC0415

    if isinstance(error, ExceptionGroup):
        parts = [_explain_error(part) for part in error.exceptions]
        return [words for part in parts for words in part] if all(parts) else []
    return [str(error)] if isinstance(error, ChildExited | BuildError | RequestRejected | OSError) else []
