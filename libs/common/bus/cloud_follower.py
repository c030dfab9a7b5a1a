"""Follows what cloud accounts publish about instances, beside the flow."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from libs.common.bus.protocol import Bus, Message, StreamPosition, UnreadablePayload
from libs.common.bus.stream_cache import connection_problems
from libs.common.contract.events import InstanceEvent
from libs.common.contract.services import is_account_name
from libs.common.contract.subjects import subject_of

log = logging.getLogger(__name__)

EventT = TypeVar("EventT", bound=InstanceEvent)


@dataclass(eq=False, kw_only=True)
class CloudFollower(Generic[EventT]):
    """A bus `Follower` that passes on valid events; an account's NATS key permits its own subjects only."""

    subjects: str  # a filter
    kind: type[EventT]
    on_event: Callable[[EventT], None]
    on_stream_replaced: Callable[[], None]
    on_missed: Callable[[], None] = lambda: None  # events may have been missed

    def __post_init__(self) -> None:
        self._stream_id = ""
        self._disconnect_reason = "not connected yet"
        self._is_replaying = True

    async def run(self, bus: Bus, service: str) -> None:
        """Follow until cancelled."""
        await bus.follow(service, self.subjects, self)

    def problems(self) -> tuple[str, ...]:
        """Return why events may be missing, in words for /readyz."""
        found = connection_problems(self._disconnect_reason, replaying=self._is_replaying)
        return tuple(f"cloud accounts: {reason}" for reason in found)

    # ---- bus.Follower

    def start_replay(self, position: StreamPosition) -> None:
        if position.stream_id != self._stream_id:
            self._stream_id = position.stream_id
            self.on_stream_replaced()
        self._is_replaying = True
        self._disconnect_reason = ""

    def apply(self, message: Message) -> None:
        event = message.event
        if isinstance(event, UnreadablePayload):
            self.on_missed()
        if not isinstance(event, self.kind):
            return
        if subject_of(event) != message.subject or not is_account_name(event.account):
            log.warning("event ignored: it is about another subject", extra={"subject": message.subject})
        elif event.stream_id == self._stream_id:
            self.on_event(event)

    def mark_caught_up(self) -> None:
        """Do nothing: each event is complete without the others."""

    def finish_replay(self) -> None:
        self._is_replaying = False
        self.on_missed()

    def mark_disconnected(self, reason: str) -> None:
        self._disconnect_reason = reason or "connection lost"
        self.on_missed()
