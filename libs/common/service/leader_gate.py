"""Lets a service write only while a watcher leads."""

import asyncio

from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import Leading


class LeaderGate:
    """Opens at the first live leader heartbeat; in observe-only mode, at the first message."""

    def __init__(self, cache: StreamCache, max_silence_seconds: float, *, observe_only: bool) -> None:
        """After `max_silence_seconds` without a heartbeat, another leader may be active elsewhere."""
        self._cache = cache
        self._observe_only = observe_only
        self._max_silence_seconds = max_silence_seconds
        self._has_leader = asyncio.Event()

    def on_message(self, message: Message) -> None:
        """Open the gate if the message proves that a watcher leads."""
        if self._observe_only or (isinstance(message.event, Leading) and not self._cache.is_replaying):
            self._has_leader.set()

    async def wait(self) -> None:
        """Return once a leader was seen: before, each message would fail and be requeued."""
        await self._has_leader.wait()

    def why_paused(self) -> str:
        """Return why the service must not write now; "" if it may, or if it never writes."""
        if self._observe_only:
            return ""
        return self._cache.why_no_leader(max_silence_seconds=self._max_silence_seconds)
