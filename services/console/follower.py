"""Follows the whole stream into the state of the console."""

import logging
from collections.abc import Callable
from datetime import datetime

from libs.common.bus.protocol import Message, StreamPosition, UnreadablePayload
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import InstanceEvent
from libs.common.contract.subjects import FLOW, SNAPSHOT, subject_of
from services.console.core.console_state import ConsoleState

log = logging.getLogger(__name__)


class ConsoleFollower:
    """A bus `Follower`. The stream cache decides which messages of the flow are valid, and keeps few."""

    def __init__(
        self, state: ConsoleState, *, monotonic: Callable[[], float], now: Callable[[], datetime]
    ) -> None:
        self._state = state
        self._now = now
        self.cache = StreamCache(
            clock=monotonic,
            should_keep=lambda message: message.subject == SNAPSHOT,
            on_message=self._apply,
            on_stream_replaced=lambda: state.clear(now().timestamp()),
        )
        self._failed_subjects: set[str] = set()

    def problems(self) -> tuple[str, ...]:
        """Return why the page may be outdated."""
        failed = (f"defect: cannot show {min(self._failed_subjects)}",) if self._failed_subjects else ()
        return (*self.cache.problems(), *failed)

    # ---- bus.Follower

    def start_replay(self, position: StreamPosition) -> None:
        self.cache.start_replay(position)
        self._state.start_replay()

    def apply(self, message: Message) -> None:
        if message.subject.startswith(f"{FLOW}."):
            self.cache.apply(message)
        elif self._is_valid(message):
            self._apply(message)

    def mark_caught_up(self) -> None:
        self.cache.mark_caught_up()

    def finish_replay(self) -> None:
        self.cache.finish_replay()
        self._state.finish_replay()

    def mark_disconnected(self, reason: str) -> None:
        self.cache.mark_disconnected(reason)

    def _is_valid(self, message: Message) -> bool:
        """Whether a message outside the flow is about its own subject and this stream."""
        event = message.event
        if isinstance(event, UnreadablePayload) or subject_of(event) != message.subject:
            return False
        return not isinstance(event, InstanceEvent) or event.stream_id == self.cache.stream_id

    def _apply(self, message: Message) -> None:
        try:
            is_live = not self.cache.is_replaying
            self._state.apply(message, self._now().timestamp(), live=is_live)
            self._failed_subjects.discard(message.subject)
        except Exception:
            # Any message may trigger a defect. It must neither end the process nor stop the page.
            self._failed_subjects.add(message.subject)
            log.exception("cannot apply message", extra={"subject": message.subject})
