"""The wall clocks of the processes, which can jump: each has a file with its offset."""

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from libs.testbed.child_process import make_directory
from libs.testbed.patched_process import PATCHES
from tests.chaos.jumping_clock import CLOCK_DIRECTORY

INSTALL_CLOCK: Final = "tests.chaos.jumping_clock:install"  # the patch of a process
_FOLDER: Final = "clocks"


def build_clock_environment(run_dir: Path) -> Mapping[str, str]:
    """The environment of processes whose clocks can jump."""
    patches = filter(None, (INSTALL_CLOCK, os.environ.get(PATCHES)))  # a mutant has patched this environment
    return {PATCHES: ",".join(patches), CLOCK_DIRECTORY: str(make_directory(run_dir / _FOLDER))}


def set_clock_offset(run_dir: Path, process: str, seconds: float) -> None:
    """Let the clock of a process jump to that offset from the machine's. It keeps it over a restart.

    Raises FileNotFoundError if the process does not run with such a clock.
    """
    with (run_dir / _FOLDER / process).open("r+b") as file:
        file.write(struct.pack("d", seconds))
