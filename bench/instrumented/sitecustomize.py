"""Python imports this at the start of each service of a bench.

It counts the messages that followers apply, in a file that the bench reads. On SIGUSR1 it writes the number
of asyncio tasks to a file. With a directory for profiles, the process also profiles itself from SIGUSR2 on
and writes the profile at exit.
"""

import atexit
import cProfile
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

# The followers of the stream, each with its own counter: module -> class. A bus calls `apply` per message.
FOLLOWERS: Final = {
    "libs.common.bus.stream_cache": "StreamCache",
    "services.watcher.published_state": "PublishedState",
}
_COUNT_BYTES: Final = 8 * len(FOLLOWERS)


class _CountingFinder(MetaPathFinder):
    """Finds the modules of followers; after their import it counts the calls of `apply`."""

    def __init__(self, counts: memoryview) -> None:
        self._counts = counts

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in FOLLOWERS else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_count(module: ModuleType) -> None:
            execute(module)
            _count_follower(module, self._counts)

        spec.loader.exec_module = execute_and_count  # type: ignore[method-assign]
        return spec


def _count_follower(module: ModuleType, counts: memoryview) -> None:
    follower: Any = getattr(module, FOLLOWERS[module.__name__])
    follower.apply = _count_calls(follower.apply, counts, [*FOLLOWERS].index(module.__name__))


def _count_calls(function: Callable[..., None], counts: memoryview, at: int) -> Callable[..., None]:
    def counted(*arguments: object) -> None:
        counts[at] += 1
        function(*arguments)

    return counted


def _count_applied(directory: str) -> None:
    file = Path(directory) / str(os.getpid())
    file.write_bytes(bytes(_COUNT_BYTES))
    with file.open("r+b") as opened:
        counts = memoryview(mmap.mmap(opened.fileno(), _COUNT_BYTES)).cast("Q")
    for name in FOLLOWERS.keys() & sys.modules.keys():  # a forked process has imported them before
        _count_follower(sys.modules[name], counts)
    sys.meta_path.insert(0, _CountingFinder(counts))


def _count_tasks_on_signal(directory: str) -> None:
    """Write the number of tasks on SIGUSR1. The handler runs in the main thread, as the event loop does."""

    def write(*_: object) -> None:
        import asyncio  # noqa: PLC0415 - not in the processes that never run it, such as pip's

        file = Path(directory) / f"{os.getpid()}.tasks"
        new = file.with_suffix(".new")
        new.write_text(str(len(asyncio.all_tasks())))
        new.replace(file)

    signal.signal(signal.SIGUSR1, write)


def _profile_on_signal(directory: str) -> None:
    profile = cProfile.Profile(time.process_time)
    # Python handles signals in the main thread, which also runs the event loop.
    signal.signal(signal.SIGUSR2, lambda *_: profile.enable())

    def write() -> None:
        profile.disable()
        module = next((part for part in sys.orig_argv if part.startswith("services")), "services")
        name = "all-in-one" if module == "services" else module.removeprefix("services.")
        profile.dump_stats(Path(directory) / f"{name}.prof")

    atexit.register(write)


if "TALOS_CCM_BENCH_COUNTS" in os.environ:
    _count_applied(os.environ["TALOS_CCM_BENCH_COUNTS"])
    _count_tasks_on_signal(os.environ["TALOS_CCM_BENCH_COUNTS"])
if "TALOS_CCM_BENCH_PROFILES" in os.environ:
    _profile_on_signal(os.environ["TALOS_CCM_BENCH_PROFILES"])
