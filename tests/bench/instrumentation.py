"""Patches a service of a bench so that the bench can measure it from outside.

It imports none of our modules, because their memory would count as that of the service.
On SIGUSR1 it writes the number of asyncio tasks to a file.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from libs.common.bus.protocol import Bus
    from libs.common.service.service import Service

COUNT_DIRECTORY: Final = "TALOS_CCM_BENCH_COUNTS"
PULSE_SWITCH: Final = "TALOS_CCM_BENCH_PULSES"


def install() -> None:
    """On SIGUSR1, write the number of tasks of this process to a file."""
    file = Path(os.environ[COUNT_DIRECTORY]) / f"{os.getpid()}.tasks"

    def write(*_: object) -> None:
        new = file.with_suffix(".new")
        new.write_text(str(len(asyncio.all_tasks())))
        new.replace(file)

    signal.signal(signal.SIGUSR1, write)  # Python calls it in the main thread, which runs the event loop


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
