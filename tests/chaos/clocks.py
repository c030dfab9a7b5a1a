"""Wall clocks that can jump: chaos writes the offset of a process to a file, which the process maps."""

import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from libs.testbed.child_process import make_directory
from libs.testbed.patched_process import PATCHES, PROCESS_NAME

CLOCK_DIRECTORY: Final = "TALOS_CCM_CHAOS_CLOCKS"
# The one module that reads the wall clock with `datetime.now`.
CLOCK_MODULE: Final = "libs.common.clocks"
_BYTES: Final = 8
INSTALL_CLOCK: Final = "tests.chaos.clocks:install"  # the patch of a process
_FOLDER: Final = "clocks"


class _JumpingDatetime:
    """`datetime` in that module: the present is later or earlier by the offset."""

    def __init__(self, read_offset: Callable[[], float]) -> None:
        self._read_offset = read_offset

    def now(self, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + timedelta(seconds=self._read_offset())

    def __getattr__(self, name: str) -> Any:
        return getattr(datetime, name)


def install() -> None:
    """Let the clock of this process follow its file; a process that starts again keeps the offset."""
    file = Path(os.environ[CLOCK_DIRECTORY]) / os.environ[PROCESS_NAME]
    if not file.exists():
        file.write_bytes(bytes(_BYTES))
    with file.open("rb") as opened:
        offsets = memoryview(mmap.mmap(opened.fileno(), _BYTES, access=mmap.ACCESS_READ)).cast("d")

    def read_offset() -> float:
        return offsets[0]

    vars(import_module(CLOCK_MODULE))["datetime"] = _JumpingDatetime(read_offset)
    read_time, read_nanoseconds = time.time, time.time_ns
    time.time = lambda: read_time() + read_offset()  # the time of log lines
    time.time_ns = lambda: read_nanoseconds() + int(read_offset() * 1e9)  # the time of spans


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
