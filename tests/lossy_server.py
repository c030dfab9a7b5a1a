"""A memory bus whose server loses the end of its stream, as NATS does after a power failure."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.memory.stream import StoredMessage, Stream
from libs.common.bus.protocol import Follower
from libs.common.contract.services import Durable

_RECONNECT_SECONDS = (0.0, 0.05, 0.5, 2.0)


class _RememberingStream(Stream):
    """A stream whose end can be cut off."""

    def __init__(self, created: str) -> None:
        super().__init__(created)
        self._published: list[tuple[StoredMessage, float | None]] = []  # with their TTL

    def _keep(self, stored: StoredMessage, ttl_seconds: float | None) -> None:
        super()._keep(stored, ttl_seconds)
        self._published.append((stored, ttl_seconds))

    def lose_end(self, count: int, *, restores: bool, now: float) -> None:
        """Lose the last messages. `restores`: the older ones that they had replaced are there again."""
        end = max(0, self.last_sequence - count)
        before = dict(self._messages)
        published, self._published = self._published, []
        for subject in before:
            self._remove(subject)
        for stored, ttl_seconds in published:
            is_there = restores or before.get(stored.subject) is stored
            if stored.sequence <= end and stored.expires_at > now and is_there:
                self._keep(stored, ttl_seconds)
        self.last_sequence = end


class LossyServer(MemoryServer):
    """Loses messages that it has acknowledged. Its followers reconnect one after the other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._durables: tuple[Durable, ...] = ()
        self._followings: list[asyncio.Task[None]] = []
        self._random = random.Random(1)

    def provision(self, durables: tuple[Durable, ...]) -> Stream:
        self._durables = durables
        if self.stream is None:
            self.stream = _RememberingStream(self.clock().isoformat())
        return super().provision(durables)

    def lose_end(self, count: int, *, restores: bool) -> None:
        """Lose the last messages and all connections; durables start again."""
        if not isinstance(self.stream, _RememberingStream):
            return
        self.stream.lose_end(count, restores=restores, now=asyncio.get_running_loop().time())
        for following in self._followings:
            following.cancel()
        for durable in self._durables:
            state = self.durables[durable.name]
            assert state._backlog is not None
            self.stream.close_backlog(state._backlog)
            state._backlog, state._again, state._unsettled = None, [], {}
            state.provision(self.stream, durable.filter)

    async def keep_following(
        self, follow: Callable[[], Coroutine[Any, Any, None]], follower: Follower
    ) -> None:
        """Follow again after each lost connection, until cancelled."""
        while True:
            following = asyncio.create_task(follow())
            self._followings.append(following)
            try:
                await asyncio.wait([following])
            finally:
                self._followings.remove(following)
                following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            follower.mark_disconnected("the server has lost power")
            await asyncio.sleep(self._random.choice(_RECONNECT_SECONDS))


class ReconnectingBus(MemoryBus):
    """A bus whose followers survive the loss of the connection."""

    def __init__(self, server: LossyServer) -> None:
        super().__init__(server)
        self._lossy_server = server

    async def follow(self, name: str, filter_subject: str, follower: Follower, **options: Any) -> None:
        follow = super().follow
        await self._lossy_server.keep_following(
            lambda: follow(name, filter_subject, follower, **options), follower
        )
