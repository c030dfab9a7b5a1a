"""Limits how many machines are queried at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class QuerySlots:
    """Limits how many machines are queried at once. It does not limit Talos calls.

    A poll or a dial back takes one slot, whatever number of Talos calls it makes. It releases the slot early
    if it is slow, so that hanging machines do not block healthy ones.
    """

    def __init__(self, places: int, *, slow_seconds: float = 1.0) -> None:
        self._semaphore = asyncio.Semaphore(places)
        self._slow_seconds = slow_seconds

    @property
    def is_full(self) -> bool:
        """Whether the next poll or dial back must wait for a slot."""
        return self._semaphore.locked()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Hold a slot for `slow_seconds` at most. The body may take longer."""
        await self._semaphore.acquire()
        is_released = False

        def release() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                self._semaphore.release()

        timer = asyncio.get_running_loop().call_later(self._slow_seconds, release)
        try:
            yield
        finally:
            timer.cancel()
            release()
