"""The clocks of the reconcilers, and the wait of one reconciler for its next step."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from libs.talos.stream_buffer import WaiterEvent
from services.metadata.core.object_state import NEVER, PollIntervals, Timing


@dataclass(frozen=True)
class Clock:
    """Gives the time, and the delays from the service's intervals and its source of randomness."""

    monotonic: Callable[[], float]  # in seconds
    now: Callable[[], datetime]  # UTC
    random: Callable[[], float]  # in [0, 1)
    intervals: PollIntervals

    def timing(self) -> Timing:
        """Return the time of a change of state, with a new jitter."""
        return Timing(now=self.monotonic(), jitter=self.random(), intervals=self.intervals)


class Wakeup:
    """Wakes the task of one object when its state changes, or when its next step is due."""

    __slots__ = ("_changed", "_clock")  # there are thousands

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = WaiterEvent()

    def set(self) -> None:
        """Wake the task: the state changed."""
        self._changed.set()

    def clear(self) -> None:
        """Start to record changes: the task decides its next step now."""
        self._changed.clear()

    async def wait(self, until: float) -> None:
        """Wait until the state has changed since `clear`, or until that monotonic time."""
        if until == NEVER:
            await self._changed.wait()
            return
        seconds = max(0.0, until - self._clock.monotonic())
        due = asyncio.get_running_loop().call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            due.cancel()
