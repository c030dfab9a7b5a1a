"""Limits the concurrent requests to one API server and decides which waiting request goes next."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Final

MAX_OVERTAKING_SECONDS: Final = 2.0

_Waiter = tuple[float, asyncio.Future[None]]  # since when, monotonic


class RequestQueue:
    """Slots for concurrent requests, each for the next waiting request when it becomes free.

    An urgent request goes before all others, so that a joining Node becomes usable before anything else is
    written. A request that has waited MAX_OVERTAKING_SECONDS is overtaken no longer: it then goes before
    each urgent request that came after it. Otherwise requests go in the order in which they came.
    """

    def __init__(self, slots: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._slots = self._free = slots
        self._clock = clock
        self._urgent: deque[_Waiter] = deque()
        self._others: deque[_Waiter] = deque()
        self._is_closed = False
        self._idle_since = -inf

    def idle_seconds(self) -> float:
        """Return for how long no request has occupied a slot or waited for one."""
        return self._clock() - self._idle_since if self._free == self._slots else 0.0

    @asynccontextmanager
    async def slot(self, *, is_urgent: bool = False) -> AsyncIterator[None]:
        """Wait for a slot and occupy it. A closed queue lets every request pass."""
        if self._free > 0 or self._is_closed:
            self._free -= 1
        else:
            await self._wait(self._urgent if is_urgent else self._others)
        try:
            yield
        finally:
            self._release()

    def close(self) -> None:
        """Let all waiting requests pass, so that each finds its connection closed."""
        self._is_closed = True
        while (waiter := self._take_next()) is not None:
            self._free -= 1
            waiter.set_result(None)

    async def _wait(self, queue: deque[_Waiter]) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append((self._clock(), waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it got the slot in the same moment
                self._release()
            raise

    def _release(self) -> None:
        waiter = self._take_next()
        if waiter is None:
            self._free += 1
            self._idle_since = self._clock()
        else:
            waiter.set_result(None)

    def _take_next(self) -> asyncio.Future[None] | None:
        for queue in (self._urgent, self._others):
            while queue and queue[0][1].done():  # cancelled
                queue.popleft()
        if not self._urgent or not self._others:
            queue = self._urgent or self._others
            return queue.popleft()[1] if queue else None
        since = self._others[0][0]
        is_next = since < self._urgent[0][0] and self._clock() - since >= MAX_OVERTAKING_SECONDS
        return (self._others if is_next else self._urgent).popleft()[1]
