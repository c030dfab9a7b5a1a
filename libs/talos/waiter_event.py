"""Wakes the one who waits: thousands do at a time, and an asyncio.Event has 760 bytes for more waiters."""

import asyncio


class WaiterEvent:
    """An event that has come or not, for one waiter."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """It has come."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Wait for the next."""
        self._is_set = False

    async def wait(self) -> None:
        """Return once it has come."""
        if self._is_set:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
