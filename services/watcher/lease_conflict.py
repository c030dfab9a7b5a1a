"""Detects a leader with another Lease: two installations that publish to one stream."""

from dataclasses import dataclass
from typing import Final

from libs.common.service.service import Dependencies
from services.watcher.published_state import PublishedState

_REPEATED_SECONDS: Final = 60.0


@dataclass(eq=False)
class LeaseConflict:
    """Decides whether a leader that was deposed, although it holds its Lease, may publish again.

    A former leader of the same Lease can depose it once, with a late message. The leader of another Lease
    does it again. Without a limit both would publish every object several times a second, each with a higher
    epoch than the other.
    """

    published: PublishedState
    dependencies: Dependencies
    silence_seconds: float  # without a heartbeat of the other leader, after which it no longer leads

    def __post_init__(self) -> None:
        self._deposed_at = float("-inf")

    def find_problem(self) -> str:
        """Return why this leader must wait, "" if it may lead. Call it when the leader is deposed."""
        now, last = self.dependencies.monotonic(), self._deposed_at
        self._deposed_at = now
        heartbeat = self.published.leader_heartbeat
        if now - last > _REPEATED_SECONDS or heartbeat is None:
            return ""
        is_own = heartbeat.holder == self.dependencies.identity
        if is_own or self.published.seconds_since_leader_heartbeat() >= self.silence_seconds:
            return ""
        return f"{heartbeat.holder} publishes to this stream, too, and has another Lease"
