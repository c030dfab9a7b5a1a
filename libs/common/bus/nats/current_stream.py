"""What this process knows of the stream: its ID when last read, and when its server answered."""

import asyncio
from collections.abc import Callable
from typing import Final

from libs.common.bus.protocol import ServerLiveness

_GAP_SECONDS: Final = 10.0  # it is queried every 3 s, with a timeout of 5 s


class CurrentStream:
    """Tells those who pull from the stream that another one has taken its place."""

    def __init__(self) -> None:
        self.id = ""  # creation time of the stream; "" while none is known
        self.changed = asyncio.Event()  # set and replaced when the ID changes

    def record(self, stream_id: str) -> None:
        """Record the ID that the server returned."""
        if stream_id != self.id:
            self.id = stream_id
            self.changed.set()
            self.changed = asyncio.Event()

    def record_lost(self) -> None:
        """Record that there is no stream."""
        self.id = ""

    async def wait_until_replaced(self, known: str) -> None:
        """Return when there is another ID than `known`, or with "" another than the first one."""
        while self.id in ("", known) or not known:
            known = known or self.id
            await self.changed.wait()


class LivenessTracker:
    """Records the last answer, and the first one since the last gap."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._first = self._last = float("-inf")

    def record_response(self) -> None:
        """Record an answer of the server."""
        now = self._clock()
        if now - self._last > _GAP_SECONDS:
            self._first = now
        self._last = now

    def server_liveness(self) -> ServerLiveness:
        """Return the liveness as of now."""
        if self._last == float("-inf"):
            return ServerLiveness(silent_seconds=float("inf"), responsive_seconds=0.0)
        return ServerLiveness(
            silent_seconds=self._clock() - self._last, responsive_seconds=self._last - self._first
        )
