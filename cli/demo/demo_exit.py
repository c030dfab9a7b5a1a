"""How a demo ends: with a status, told to by a signal, or with an error that needs no traceback."""

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path

import click
from rich.console import Console

from cli.demo.demo_options import DemoOptions

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignal(Exception):
    """Told to end by that signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.signal_number = number


def run_to_exit_status(wanted: DemoOptions) -> int:
    """Run the demo; its exit status. Raises ClickException for an error that words explain."""
    try:
        import cli.demo.run_demo as running  # noqa: PLC0415 - `--help` need not load all of it
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("libs.testbed"):
            raise
        raise click.ClickException(
            "the demo needs the testbed, which an image does not hold; in a checkout: make demo"
        ) from None
    try:
        all_ready = asyncio.run(_run_until_stopped(running.run_demo(wanted, Console())))
    except (ExceptionGroup, RuntimeError, OSError) as error:
        if not (words := _explain_error(error)):
            raise
        raise click.ClickException("\n".join(words)) from None
    except KeyboardInterrupt:  # before anything was started
        return 128 + signal.SIGINT
    except StopSignal as told:
        _print_ended(wanted)
        return 128 + told.signal_number
    if not wanted.exit_when_ready:
        _print_ended(wanted)
    return 0 if all_ready else 1


def _print_ended(wanted: DemoOptions) -> None:
    kept = f"the files are in {wanted.keep_logs}" if wanted.keep_logs else "every file removed"
    click.echo(f"\nEnded: every process stopped, {kept}.", err=True)


async def _run_until_stopped(running: Coroutine[None, None, bool]) -> bool:
    """`kill` and a closed terminal end the demo as orderly as Ctrl-C does."""
    loop = asyncio.get_running_loop()
    told: list[signal.Signals] = []
    task = asyncio.ensure_future(running)

    def end(number: signal.Signals) -> None:
        if not told:  # a second one must not cut the clean-up short
            task.cancel()
        told.append(number)

    for number in _ENDING_SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if told:
            raise StopSignal(told[0]) from None
        raise


def create_log_directory(directory: Path) -> None:
    """Make the directory for --keep-logs; what an earlier run left there would be taken for this one's."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        taken = any(directory.iterdir())
    except OSError as error:
        raise click.UsageError(f"--keep-logs {directory}: {error.strerror}") from None
    if taken:
        raise click.UsageError(f"--keep-logs {directory}: not empty; name a new directory")


def _explain_error(error: Exception) -> list[str]:
    """What to say of an error that needs no traceback; empty if one of them does."""
    from libs.testbed.child_process import ChildExited  # noqa: PLC0415 - as above
    from libs.testbed.control_plane.build import BuildError  # noqa: PLC0415
    from libs.testbed.kubelets import RequestRejected  # noqa: PLC0415

    if isinstance(error, ExceptionGroup):
        parts = [_explain_error(part) for part in error.exceptions]
        return [words for part in parts for words in part] if all(parts) else []
    return [str(error)] if isinstance(error, ChildExited | BuildError | RequestRejected | OSError) else []
