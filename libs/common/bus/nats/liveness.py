"""Tracks when the stream's server answered."""

from collections.abc import Callable
from typing import Final

from libs.common.bus.protocol import ServerLiveness

_GAP_SECONDS: Final = 10.0  # it is queried every 3 s, with a timeout of 5 s


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
