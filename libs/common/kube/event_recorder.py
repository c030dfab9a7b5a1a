"""Events that are to be written, one at a time, behind the work of which they tell."""

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
FLUSH_SECONDS: Final = 3.0  # at the end of the process, for what is still to be written
EVENT_RETRY_SECONDS: Final = 600.0  # that an Event is tried, while the API server does not take it
_AGAIN_AT_MOST_SECONDS: Final = 8.0


class EventWriter(Protocol):
    """Who writes Events; `kube_api.KubeApi` does it."""

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class _QueuedEvent(msgspec.Struct, frozen=True):
    event: ObjectEvent
    at: datetime
    until: float  # when it is given up, on the loop's clock


class EventRecorder:
    """What the API server does not take now is tried again; beyond MOST_WAITING the oldest goes unsaid."""

    def __init__(self, kube: EventWriter, *, is_foreign: Callable[[str], bool] = lambda name: False) -> None:
        """`is_foreign`: whether the object of that name is another's by now: nothing is said on it."""
        self._kube = kube
        self._is_foreign = is_foreign
        self._waiting: deque[_QueuedEvent] = deque(maxlen=MAX_QUEUED)
        self._has_events = asyncio.Event()

    def record(self, event: ObjectEvent, at: datetime) -> None:
        """Write it soon, as of `at`."""
        if len(self._waiting) == MAX_QUEUED:
            about = self._waiting[0].event.regarding.name
            log.warning("too many Events wait: one goes unsaid", extra={"node": about})
        until = asyncio.get_running_loop().time() + EVENT_RETRY_SECONDS
        self._waiting.append(_QueuedEvent(event, at, until))
        self._has_events.set()

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        while True:
            await self._has_events.wait()
            self._has_events.clear()
            failures = 0
            while self._waiting:
                failures = 0 if await self._write_next() else failures + 1
                if failures:
                    await asyncio.sleep(min(_AGAIN_AT_MOST_SECONDS, backoff_seconds(failures, 0.0)))

    async def flush(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                for _ in range(len(self._waiting)):
                    await self._write_next()
        except TimeoutError:
            log.warning("Events go unsaid: the process ends", extra={"count": len(self._waiting)})

    async def _write_next(self) -> bool:
        """Whether there is nothing more to do about it; else it is told after the others."""
        told = self._waiting.popleft()
        if self._is_foreign(told.event.regarding.name):  # it may have waited for minutes
            return True
        try:
            await self._kube.create_event(told.event, now=told.at)
        except (TemporaryError, PermanentError) as error:
            is_over = isinstance(error, PermanentError) or asyncio.get_running_loop().time() >= told.until
            if not is_over:
                self._waiting.append(told)
            self._warn(told, error, is_over=is_over)
            return is_over
        except BaseException:  # cancelled: it is among the last words
            self._waiting.appendleft(told)
            raise
        return True

    def _warn(self, told: _QueuedEvent, error: Exception, *, is_over: bool) -> None:
        """What it speaks of is in the log, in `decided` and in the metrics as well."""
        about = {"node": told.event.regarding.name, "reason": told.event.reason, "error": str(error)}
        if is_over:
            log.warning("an Event could not be written", extra=about)
        else:
            log.info("an Event could not be written yet", extra=about)
