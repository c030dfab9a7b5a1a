"""The wall clocks of the processes, which can jump: each has a file with its offset."""

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from libs.testbed.child_process import make_directory
from libs.testbed.service_start import ROOT

CLOCK_DIRECTORY: Final = "TALOS_CCM_CHAOS_CLOCKS"
JUMPING_CLOCK: Final = Path(__file__).parent / "jumping_clock"  # its sitecustomize reads the files
_FOLDER: Final = "clocks"


def build_clock_environment(run_dir: Path) -> Mapping[str, str]:
    """The environment of processes whose clocks can jump."""
    return {
        "PYTHONPATH": os.pathsep.join((str(JUMPING_CLOCK), str(ROOT))),
        CLOCK_DIRECTORY: str(make_directory(run_dir / _FOLDER)),
    }


def set_clock_offset(run_dir: Path, process: str, seconds: float) -> None:
    """Let the clock of a process jump to that offset from the machine's. It keeps it over a restart.

    Raises FileNotFoundError if the process does not run with such a clock.
    """
    with (run_dir / _FOLDER / process).open("r+b") as file:
        file.write(struct.pack("d", seconds))
