"""Patches the wall clock of a service so that it can jump.

The offset, a double in seconds, is in a file that chaos writes. The monotonic clock does not jump, as on
Linux.
"""

import mmap
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from libs.testbed.service_start import PROCESS_NAME

CLOCK_DIRECTORY: Final = "TALOS_CCM_CHAOS_CLOCKS"
# The modules that read the wall clock with `datetime.now`; all others get the time as an argument.
CLOCK_MODULES: Final = frozenset(
    {
        "libs.common.bus.memory.bus",
        "libs.common.bus.nats.bus",
        "libs.common.kube.credentials",
        "libs.common.service.application",
        "libs.common.service.run_process",
        "services.bootstrap.run",
    }
)
_BYTES: Final = 8


class _JumpingDatetime:
    """`datetime` in the modules above: the present is later or earlier by the offset."""

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

    clock = _JumpingDatetime(read_offset)
    for name in CLOCK_MODULES:
        vars(import_module(name))["datetime"] = clock
    read_time, read_nanoseconds = time.time, time.time_ns
    time.time = lambda: read_time() + read_offset()  # the time of log lines
    time.time_ns = lambda: read_nanoseconds() + int(read_offset() * 1e9)  # the time of spans
