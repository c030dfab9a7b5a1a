"""Speed of this machine during a measurement: the CPU time of a fixed loop, measured repeatedly.

On a shared machine the same work takes a varying amount of CPU time: other load on cores and caches slows
each instruction, by a third within a minute. The fixed loop at the same time shows by how much.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from typing import Final

_EVERY_SECONDS: Final = 0.1
_TURNS: Final = 4000  # a third of a millisecond: together less than half a percent of a core


class LoopSpeed:
    """CPU milliseconds of each run of the loop."""

    def __init__(self) -> None:
        self.costs: list[float] = []

    @property
    def loop_ms(self) -> float:
        """The mean without the lowest and highest tenth: after a pause the caches are cold."""
        tenth = len(self.costs) // 10
        return statistics.fmean(sorted(self.costs)[tenth : len(self.costs) - tenth])


@contextlib.asynccontextmanager
async def measure_speed() -> AsyncIterator[LoopSpeed]:
    """Measure once at the start, and repeatedly during the body."""
    speed = LoopSpeed()
    speed.costs.append(_run_loop())
    measuring = asyncio.create_task(_measure_repeatedly(speed))
    try:
        yield speed
    finally:
        measuring.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await measuring


async def _measure_repeatedly(speed: LoopSpeed) -> None:
    while True:
        await asyncio.sleep(_EVERY_SECONDS)
        speed.costs.append(_run_loop())


def _run_loop() -> float:
    began = time.thread_time()
    table: dict[int, str] = {}
    for number in range(_TURNS):
        table[number * 7919 & 1023] = str(number)  # some arithmetic, some memory, as services do
    return 1000 * (time.thread_time() - began)
