"""Wakes the one who waits: thousands do at a time, and an asyncio.Event has 760 bytes for more waiters."""

import asyncio


class News:
    """An event that has come or not, for one waiter."""

    __slots__ = ("_has_come", "_waiting")

    def __init__(self) -> None:
        self._has_come = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """It has come."""
        self._has_come = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def clear(self) -> None:
        """Wait for the next."""
        self._has_come = False

    async def wait(self) -> None:
        """Return once it has come."""
        if self._has_come:
            return
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None
