"""Patches a service of a bench so that the bench can measure it from outside.

It imports none of our modules, because their memory would count as that of the service.
On SIGUSR1 it writes the number of asyncio tasks to a file. With a directory for profiles, the process also
profiles itself from SIGUSR2 on and writes the profile at exit.
"""

import asyncio
import atexit
import cProfile
import os
import signal
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from libs.testbed.patched_process import PROCESS_NAME

if TYPE_CHECKING:
    from libs.common.bus.protocol import Bus
    from libs.common.service.service import Service

COUNT_DIRECTORY: Final = "TALOS_CCM_BENCH_COUNTS"
PULSE_SWITCH: Final = "TALOS_CCM_BENCH_PULSES"
PROFILE_DIRECTORY: Final = "TALOS_CCM_BENCH_PROFILES"


def install() -> None:
    """Measure this process into the directories of its environment."""
    _count_tasks_on_signal(Path(os.environ[COUNT_DIRECTORY]) / f"{os.getpid()}.tasks")
    if profiles := os.environ.get(PROFILE_DIRECTORY):
        profile_on_signal(Path(profiles) / f"{os.environ[PROCESS_NAME]}.prof")


def switch_pulses() -> None:
    """Let this process publish pulses only while a file exists, which it does at the start."""
    application: Any = import_module("libs.common.service.application")
    switch, publish = Path(os.environ[PULSE_SWITCH]), application.publish_pulses

    class Switched(list["Service"]):
        def __iter__(self) -> "Iterator[Service]":
            return super().__iter__() if switch.exists() else iter(())

    async def publish_switched(bus: "Bus", services: "Sequence[Service]", *others: object) -> None:
        await publish(bus, Switched(services), *others)

    application.publish_pulses = publish_switched


def _count_tasks_on_signal(file: Path) -> None:
    """Write the number of tasks on SIGUSR1. The handler runs in the main thread, as the event loop does."""

    def write(*_: object) -> None:
        new = file.with_suffix(".new")
        new.write_text(str(len(asyncio.all_tasks())))
        new.replace(file)

    signal.signal(signal.SIGUSR1, write)


def profile_on_signal(file: Path) -> None:
    """Profile this process from SIGUSR2 until its end."""
    profile = cProfile.Profile(time.process_time)
    # Python handles signals in the main thread, which also runs the event loop.
    signal.signal(signal.SIGUSR2, lambda *_: profile.enable())

    def write() -> None:
        profile.disable()
        profile.dump_stats(file)

    atexit.register(write)
