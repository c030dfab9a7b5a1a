"""How a demo ends: with an exit status, by a signal, or with an error without traceback."""

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path

import click
from rich.console import Console

from cli.demo.demo_options import DemoOptions

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_to_exit_status(wanted: DemoOptions) -> int:
    """Run the demo and return its exit status.

    Raises ClickException for an error that needs no traceback.
    """
    try:
        import cli.demo.run_demo as running  # noqa: PLC0415 - `--help` need not load all of it
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("libs.testbed"):
            raise
        raise click.ClickException(
            "the demo needs the testbed, which the container image does not contain; in a checkout, run "
            "make demo"
        ) from None
    try:
        result = asyncio.run(_run_until_stopped(running.run_demo(wanted, Console())))
    except (ExceptionGroup, RuntimeError, OSError) as error:
        if not (words := _explain_error(error)):
            raise
        raise click.ClickException("\n".join(words)) from None
    except KeyboardInterrupt:  # before anything was started
        return 128 + signal.SIGINT
    if isinstance(result, signal.Signals) or not wanted.exit_when_ready:
        kept = f"logs are in {wanted.keep_logs}" if wanted.keep_logs else "all files deleted"
        click.echo(f"\nStopped all processes; {kept}.", err=True)
    return 128 + result if isinstance(result, signal.Signals) else int(not result)


async def _run_until_stopped(running: Coroutine[None, None, bool]) -> bool | signal.Signals:
    """Run the demo and return its result, or the signal that ended it.

    SIGTERM and SIGHUP end it as orderly as Ctrl-C does.
    """
    loop = asyncio.get_running_loop()
    told: list[signal.Signals] = []
    task = asyncio.ensure_future(running)

    def end(number: signal.Signals) -> None:
        if not told:  # a second signal must not interrupt the clean-up
            task.cancel()
        told.append(number)

    for number in _ENDING_SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if told:
            return told[0]
        raise


def create_log_directory(directory: Path) -> None:
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
