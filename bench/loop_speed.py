"""How fast this machine is while something is measured: a fixed loop's CPU time, taken again and again.

CPU time is no fixed quantity on a shared machine: who uses the rest of the cores and their caches makes
each instruction slower, by a third within a minute. The same loop at the same time tells by how much.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from typing import Final

_EVERY_SECONDS: Final = 0.1
_TURNS: Final = 4000  # a third of a millisecond, so that all of it costs less than half a percent of a core


class LoopSpeed:
    """Milliseconds of CPU that each turn of the loop has cost."""

    def __init__(self) -> None:
        self.costs: list[float] = []

    @property
    def loop_ms(self) -> float:
        """The mean, without the tenth at either end: the first after a pause finds cold caches."""
        few = len(self.costs) // 10
        return statistics.fmean(sorted(self.costs)[few : len(self.costs) - few])


@contextlib.asynccontextmanager
async def measure_speed() -> AsyncIterator[LoopSpeed]:
    """Measure within the body, and once at its beginning."""
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
