"""Writes Events one at a time, in the background of the work that they describe."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

import msgspec

from libs.common.bus.delivery import PermanentError, TemporaryError, backoff_seconds
from libs.common.kube.events import ObjectEvent

log = logging.getLogger(__name__)

MAX_QUEUED: Final = 10_000
FLUSH_SECONDS: Final = 3.0  # at shutdown, for queued Events
EVENT_RETRY_SECONDS: Final = 600.0  # an Event is retried for this time
_AGAIN_AT_MOST_SECONDS: Final = 8.0
_MAX_REMEMBERED: Final = 50_000  # pairs of object and reason for `record_once`


class EventWriter(Protocol):
    """Creates Events; `KubeApi` implements it."""

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class _QueuedEvent(msgspec.Struct, frozen=True):
    event: ObjectEvent
    at: datetime
    until: float  # end of the retries, on the loop's clock


class EventRecorder:
    """Queues and writes Events; failures are retried. Above MAX_QUEUED the oldest Event is dropped."""

    def __init__(self, kube: EventWriter, *, is_foreign: Callable[[str], bool] = lambda name: False) -> None:
        """`is_foreign`: whether another controller owns the object of that name; its Events are dropped."""
        self._kube = kube
        self._is_foreign = is_foreign
        self._waiting: deque[_QueuedEvent] = deque(maxlen=MAX_QUEUED)
        self._has_events = asyncio.Event()
        self._last: dict[tuple[str, str], str] = {}  # uid and reason -> discriminator

    def record_once(self, event: ObjectEvent, at: datetime) -> None:
        """Record the Event unless the last one of this object and reason had the same discriminator.

        An object of another controller gets no Event, and nothing is remembered about it.
        """
        key = event.regarding.uid, event.reason
        if self._last.get(key) == event.discriminator or self._is_foreign(event.regarding.name):
            return
        self._last[key] = event.discriminator
        if len(self._last) > _MAX_REMEMBERED:
            del self._last[next(iter(self._last))]
        self.record(event, at)

    def forget(self, uid: str, *reasons: str) -> None:
        """Let the last Events of this object and these reasons be recorded again."""
        for reason in reasons:
            self._last.pop((uid, reason), None)

    def record(self, event: ObjectEvent, at: datetime) -> None:
        """Queue the Event with the time `at`."""
        if len(self._waiting) == MAX_QUEUED:
            about = self._waiting[0].event.regarding.name
            log.warning("Event dropped: queue full", extra={"node": about})
        until = asyncio.get_running_loop().time() + EVENT_RETRY_SECONDS
        self._waiting.append(_QueuedEvent(event, at, until))
        self._has_events.set()

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        while True:
            await self._has_events.wait()
            self._has_events.clear()
            failures = 0
            while self._waiting:
                failures = 0 if await self._write_next() else failures + 1
                if failures:
                    await asyncio.sleep(min(_AGAIN_AT_MOST_SECONDS, backoff_seconds(failures, 0.0)))

    async def flush(self) -> None:
        """Write the queued Events at shutdown, within FLUSH_SECONDS."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                for _ in range(len(self._waiting)):
                    await self._write_next()
        except TimeoutError:
            log.warning("Events dropped: process ends", extra={"count": len(self._waiting)})

    async def _write_next(self) -> bool:
        """Write the next Event; return whether it is done. Otherwise it is queued again."""
        queued = self._waiting.popleft()
        if self._is_foreign(queued.event.regarding.name):  # it may have waited for minutes
            return True
        try:
            await self._kube.create_event(queued.event, now=queued.at)
        except (TemporaryError, PermanentError) as error:
            is_over = isinstance(error, PermanentError) or asyncio.get_running_loop().time() >= queued.until
            if not is_over:
                self._waiting.append(queued)
            self._warn(queued, error, is_over=is_over)
            return is_over
        except BaseException:  # cancelled: `flush` writes it
            self._waiting.appendleft(queued)
            raise
        return True

    def _warn(self, queued: _QueuedEvent, error: Exception, *, is_over: bool) -> None:
        """Log the failure. The log, `decided` and the metrics also have the content of the Event."""
        about = {"node": queued.event.regarding.name, "reason": queued.event.reason, "error": str(error)}
        if is_over:
            log.warning("Event not written", extra=about)
        else:
            log.info("Event not written yet, will retry", extra=about)
