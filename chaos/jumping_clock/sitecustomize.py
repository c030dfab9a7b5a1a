"""Python imports this at the start of each service of a chaos run: its wall clock can jump.

The offset, a double in seconds, is in a file that chaos writes. The monotonic clock does not jump, as on
Linux.
"""

import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, tzinfo
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

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


class _ClockFinder(MetaPathFinder):
    """Finds the modules above; after their import they read the jumping clock."""

    def __init__(self, clock: _JumpingDatetime) -> None:
        self._clock = clock

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in CLOCK_MODULES else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            _replace_clock(module, self._clock)

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _replace_clock(module: ModuleType, clock: _JumpingDatetime) -> None:
    module.datetime = clock  # type: ignore[attr-defined]


def _install(file: Path) -> None:
    if not file.exists():  # a process that starts again has the clock of its host
        file.write_bytes(bytes(_BYTES))
    with file.open("rb") as opened:
        offsets = memoryview(mmap.mmap(opened.fileno(), _BYTES, access=mmap.ACCESS_READ)).cast("d")

    def read_offset() -> float:
        return offsets[0]

    clock = _JumpingDatetime(read_offset)
    for name in CLOCK_MODULES & sys.modules.keys():  # a forked process has imported them before
        _replace_clock(sys.modules[name], clock)
    sys.meta_path.insert(0, _ClockFinder(clock))
    read_time, read_nanoseconds = time.time, time.time_ns
    time.time = lambda: read_time() + read_offset()  # the time of log lines
    time.time_ns = lambda: read_nanoseconds() + int(read_offset() * 1e9)  # the time of spans


if "TALOS_CCM_CHAOS_CLOCKS" in os.environ:
    _install(Path(os.environ["TALOS_CCM_CHAOS_CLOCKS"]) / os.environ["TALOS_CCM_TESTBED_PROCESS"])
