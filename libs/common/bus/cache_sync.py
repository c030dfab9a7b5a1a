"""Waits until a stream cache has applied all messages that a decision needs."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Final

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import FORMER_STREAM, StreamCache

SYNC_TIMEOUT_SECONDS: Final = 5.0  # a connected follower is behind its consumer by milliseconds


class CacheSync:
    """Lets handlers wait until the cache has applied a message and is complete."""

    def __init__(
        self, cache: StreamCache, *, problems: Callable[[StreamCache], tuple[str, ...]] = StreamCache.problems
    ) -> None:
        """`problems` returns why the cache cannot be used now, in words; empty if it can."""
        self._cache = cache
        self._problems = problems
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()

    def problems(self) -> tuple[str, ...]:
        """Return why the cache cannot be used, in words for /readyz."""
        return self._problems(self._cache)

    async def wait_for(self, message: Message) -> None:
        """Return when the cache contains everything that was published before the message.

        Raises TemporaryError if that takes longer than SYNC_TIMEOUT_SECONDS, or if the message belongs to
        another stream than the one that the cache follows.
        """
        if self.problems():
            await self._wait_for(0)  # afterwards, the cache may follow another stream
        if not self._cache.is_foreign(message) and not self._cache.has_received(message):
            await self._wait_for(message.sequence)
        if why := self.problems():  # the connection was lost after that
            raise TemporaryError("nothing can be decided", "; ".join(why))
        if not self._cache.has_received(message):
            raise TemporaryError(FORMER_STREAM)

    async def _wait_for(self, sequence: int) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (sequence, next(self._number), woken))
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_SECONDS):
                await woken
        except TimeoutError:
            raise TemporaryError("the flow is behind", "; ".join(self.problems())) from None
        finally:
            if woken.cancelled():
                self._waiting = [waiting for waiting in self._waiting if waiting[2] is not woken]
                heapq.heapify(self._waiting)

    def wake_waiters(self) -> None:
        """Wake the handlers whose sequence is applied, if the cache is complete."""
        if not self._waiting or self.problems():
            return
        while self._waiting and self._waiting[0][0] <= self._cache.sequence:
            _, _, woken = heapq.heappop(self._waiting)
            if not woken.done():
                woken.set_result(None)
