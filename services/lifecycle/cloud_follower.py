"""Follows what the cloud accounts report about instances, beside the flow."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from libs.common.bus.protocol import Bus, Message, StreamPosition
from libs.common.bus.stream_cache import connection_problems
from libs.common.contract.events import AnyInstanceReport
from libs.common.contract.subjects import INSTANCE_REPORTS, subject_of

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class CloudFollower:
    """A bus `Follower` that passes on valid reports; an account's NATS key permits its own subjects only."""

    on_report: Callable[[AnyInstanceReport], None]
    on_stream_replaced: Callable[[], None]
    on_missed: Callable[[], None]  # reports may have been missed

    def __post_init__(self) -> None:
        self._stream_id = ""
        self._disconnect_reason = "not connected yet"
        self._is_replaying = True

    async def run(self, bus: Bus, service: str) -> None:
        """Follow until cancelled."""
        await bus.follow(service, INSTANCE_REPORTS, self)

    def problems(self) -> tuple[str, ...]:
        """Return why reports may be missing."""
        found = connection_problems(self._disconnect_reason, replaying=self._is_replaying)
        return tuple(f"reports of clouds: {reason}" for reason in found)

    # ---- bus.Follower

    def start_replay(self, position: StreamPosition) -> None:
        if position.stream_id != self._stream_id:
            self._stream_id = position.stream_id
            self.on_stream_replaced()
        self._is_replaying = True
        self._disconnect_reason = ""

    def apply(self, message: Message) -> None:
        report = message.event
        if not isinstance(report, AnyInstanceReport):
            return
        if subject_of(report) != message.subject:
            log.warning(
                "report dropped: its subject is another account's", extra={"subject": message.subject}
            )
            return
        if report.stream_id == self._stream_id:
            self.on_report(report)

    def mark_caught_up(self) -> None:
        """Reports need no snapshot: each one stands for itself."""

    def finish_replay(self) -> None:
        self._is_replaying = False
        self.on_missed()

    def mark_disconnected(self, reason: str) -> None:
        self._disconnect_reason = reason or "connection lost"
        self.on_missed()
