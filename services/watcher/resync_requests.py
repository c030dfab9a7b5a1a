"""Requests of the other parts of the watcher to the resync."""

import asyncio
from collections.abc import Callable
from typing import Final

_GROWTH_INTERVAL_SECONDS: Final = 5.0  # between two attempts: a server without room rejects each of them


class ResyncRequests:
    """Stores requests until the resync has handled them. Each change wakes the resync."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._next_growth_at = float("-inf")
        self.change_count = 0
        self.needs_round = False  # the stream does not exist, or was purged
        self.needs_verification = False  # the stream or the snapshot may lack something
        self.needs_growth = False  # the stream is full, or soon will be

    def wake(self) -> None:
        """Reevaluate after a change, or a loss, of the known state of the cluster or the stream."""
        self.change_count += 1
        self._wakeup.set()

    def request_round(self) -> None:
        """Start another round, because the stream does not exist, or was purged."""
        self.needs_round = True
        self.wake()

    def request_verification(self) -> None:
        """Provision the stream and its durable consumers again, then publish another snapshot."""
        self.needs_verification = True
        self.wake()

    def end_verification(self) -> None:
        """Wake what waits for the snapshot."""
        self.needs_verification = False
        self.wake()

    def request_growth(self) -> None:
        """Request growth of the stream, at most once per growth interval."""
        now = self._clock()
        if now >= self._next_growth_at:
            self.needs_growth, self._next_growth_at = True, now + _GROWTH_INTERVAL_SECONDS
            self.wake()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. It can become true only by a change."""
        while not condition():
            self._wakeup.clear()
            await self._wakeup.wait()
