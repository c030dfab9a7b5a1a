"""Runs a command: its progress, and its exit status 2 if it cannot give a result, 130 on Ctrl-C."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cli.progress import PROGRESS

EXIT_FAILED: Final = 2


class CommandError(Exception):
    """The command cannot give a result; the text gives the reason and what to do."""


@contextmanager
def run_command(progress: str) -> Iterator[None]:
    """Show the progress until the first output.

    Print a CommandError and exit with 2; exit with 130 on Ctrl-C.
    """
    with PROGRESS.show(progress):
        try:
            yield
        except CommandError as error:
            from cli.lines import print_error  # noqa: PLC0415 - `--help` need not load it

            print_error(f"Error: {error}")
            sys.exit(EXIT_FAILED)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
