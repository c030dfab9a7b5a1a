"""Records Kubernetes Events and writes them in the background of the work that they describe."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, Protocol

import msgspec

from libs.common.bus.delivery import PermanentError, TemporaryError, backoff_seconds
from libs.common.contract.services import LEASE_NAMESPACE
from libs.common.kube.events import ObjectEvent, ObjectReference

log = logging.getLogger(__name__)

# Events about cluster-scoped objects go to `default`, the only namespace with the permission. This object
# always exists.
CLUSTER_REFERENCE: Final = ObjectReference(kind="Namespace", name=LEASE_NAMESPACE, uid="")

IDLE_SECONDS: Final = 0.3  # without a write of any Node: the joining Nodes are done
MAX_DELAY_SECONDS: Final = 10.0  # in a cluster whose Nodes are written all the time
FLUSH_SECONDS: Final = 5.0  # for the queued Events when the process ends
_RETRY_CAP_SECONDS: Final = 8.0
_MAX_REMEMBERED: Final = 50_000  # objects with recorded causes
_MAX_CONCURRENT_WRITES: Final = 4  # while no Node is written; otherwise one
_MAX_CONCURRENT_FLUSH_WRITES: Final = 16


class EventWriter(Protocol):
    """Creates Events; `KubeApi` implements it."""

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> None: ...


class EventLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one recorder."""

    queued: int = 10_000  # beyond it the oldest Event is dropped
    causes: int = 1  # remembered per object and reason; 1: a cause that returns is recorded again
    retry_seconds: float = 600.0  # an Event that Kubernetes does not accept is retried for this time


_DEFAULT_LIMITS: Final = EventLimits()
LATEST_ONLY: Final = EventLimits(queued=1, retry_seconds=math.inf)


class _QueuedEvent(msgspec.Struct, frozen=True):
    event: ObjectEvent
    at: datetime
    queued_at: float  # on the loop's clock


class _History(msgspec.Struct):
    """The recorded causes of one object."""

    generation: int
    causes: dict[str, dict[str, None]] = msgspec.field(default_factory=dict)  # by reason, oldest first


@dataclass(eq=False)
class EventRecorder:
    """Queues Events, each cause once, and writes them.

    With `idle_seconds`, Events wait until the service has written no Node for IDLE_SECONDS: when a thousand
    Nodes join, a third of the requests are Events about completed writes, and the API server is the
    bottleneck. An Event that has waited for MAX_DELAY_SECONDS is written anyway, one at a time.
    """

    kube: EventWriter
    _: KW_ONLY
    component: str  # the source of the Events
    now: Callable[[], datetime]
    observe_only: bool = False  # nothing is recorded
    # whether another controller owns the object of that name: its Events are dropped
    is_foreign: Callable[[str], bool] = lambda name: False
    # for how long no write of a Node has been in flight or waiting
    idle_seconds: Callable[[], float] | None = None
    limits: EventLimits = _DEFAULT_LIMITS

    def __post_init__(self) -> None:
        self._waiting: deque[_QueuedEvent] = deque()
        self._has_events = asyncio.Event()
        self._histories: dict[str, _History] = {}  # by uid
        self._generation = 0

    # ---- record

    def record(
        self,
        about: ObjectReference,
        reason: str,
        message: str,
        *,
        is_warning: bool = True,
        discriminator: str = "",
        at: datetime | None = None,
    ) -> None:
        """Queue an Event of the time `at`. One object, reason, discriminator and minute make one Event."""
        if self.observe_only:
            return
        event = ObjectEvent(
            regarding=about,
            reason=reason,
            message=message,
            type="Warning" if is_warning else "Normal",
            component=self.component,
            discriminator=discriminator,
        )
        if len(self._waiting) >= self.limits.queued:
            self._drop(self._waiting.popleft(), "queue full")
        queued_at = asyncio.get_running_loop().time()
        self._waiting.append(_QueuedEvent(event, at or self.now(), queued_at))
        self._has_events.set()

    def record_once(
        self,
        about: ObjectReference,
        reason: str,
        message: str,
        *,
        is_warning: bool = True,
        cause: str = "",
        at: datetime | None = None,
    ) -> None:
        """Record an Event unless its cause, by default the message, is remembered for object and reason.

        An object of another controller gets no Event, and nothing is remembered about it.
        """
        cause = cause or message
        history = self._histories.get(about.uid)
        if history is not None and cause in history.causes.get(reason, ()):
            return
        if self.observe_only or self.is_foreign(about.name):
            return
        if history is None:
            history = self._histories[about.uid] = _History(self._generation)
            if len(self._histories) > _MAX_REMEMBERED:
                del self._histories[next(iter(self._histories))]
        causes = history.causes.setdefault(reason, {})
        causes[cause] = None
        if len(causes) > self.limits.causes:
            del causes[next(iter(causes))]
        self.record(about, reason, message, is_warning=is_warning, discriminator=cause, at=at)

    def forget(self, uid: str, *reasons: str) -> None:
        """Let Events of this object and these reasons be recorded again; without reasons, all of them."""
        if not reasons:
            self._histories.pop(uid, None)
        elif (history := self._histories.get(uid)) is not None:
            for reason in reasons:
                history.causes.pop(reason, None)

    def on_rules_changed(self) -> None:
        """Let `forget_ended` take effect once for each object."""
        self._generation += 1

    def forget_ended(self, uid: str, current: Collection[tuple[str, str]]) -> None:
        """Forget other reasons and causes than the current ones, once per change of the rules.

        Without that limit, an object that alternates between two states would get the same Event repeatedly.
        """
        history = self._histories.get(uid)
        if history is not None and history.generation != self._generation:
            history.generation = self._generation
            for reason, causes in history.causes.items():
                history.causes[reason] = {cause: None for cause in causes if (reason, cause) in current}

    # ---- write

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        while True:
            await self._has_events.wait()
            self._has_events.clear()
            failures = 0
            while self._waiting:
                failures = 0 if await self._write(await self._wait_for_turn()) else failures + 1
                if failures:
                    await asyncio.sleep(min(_RETRY_CAP_SECONDS, backoff_seconds(failures, 0.0)))

    async def flush(self) -> None:
        """Write the queued Events when the process ends, within FLUSH_SECONDS."""
        turns = iter(range(len(self._waiting)))

        async def work() -> None:
            for _ in turns:
                await self._write_next()

        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*(work() for _ in range(_MAX_CONCURRENT_FLUSH_WRITES)))
        except TimeoutError:
            log.warning("Events dropped: process ends", extra={"count": len(self._waiting)})

    async def _wait_for_turn(self) -> int:
        """Wait until the next Event may be written; return how many may be written at once."""
        while self.idle_seconds is not None:
            idle_in = IDLE_SECONDS - self.idle_seconds()
            if idle_in <= 0:
                return _MAX_CONCURRENT_WRITES
            due_in = self._waiting[0].queued_at + MAX_DELAY_SECONDS - asyncio.get_running_loop().time()
            if due_in <= 0:
                break
            await asyncio.sleep(min(idle_in, due_in))
        return 1

    async def _write(self, count: int) -> bool:
        async with asyncio.TaskGroup() as group:
            count = min(count, len(self._waiting))
            tasks = [group.create_task(self._write_next()) for _ in range(count)]
        return all(task.result() for task in tasks)

    async def _write_next(self) -> bool:
        """Write the next Event; return whether it is done. Otherwise it is queued again."""
        if not self._waiting:
            return True
        queued = self._waiting.popleft()
        if self.is_foreign(queued.event.regarding.name):  # it may have waited for minutes
            return True
        try:
            await self.kube.create_event(queued.event, now=queued.at)
        except PermanentError as error:
            log.warning("Event not written", extra=_log_fields(queued.event) | {"error": str(error)})
        except TemporaryError as error:
            self._retry(queued, str(error))
            return False
        except BaseException:  # cancelled: `flush` writes it
            self._waiting.appendleft(queued)
            raise
        return True

    def _retry(self, queued: _QueuedEvent, error: str) -> None:
        age = asyncio.get_running_loop().time() - queued.queued_at
        if age >= self.limits.retry_seconds:
            self._drop(queued, error)
        elif len(self._waiting) >= self.limits.queued:
            self._drop(queued, "queue full")  # the others are newer
        else:
            self._waiting.append(queued)
            about = _log_fields(queued.event)
            log.info("Event not written yet, will retry", extra=about | {"error": error})

    def _drop(self, queued: _QueuedEvent, why: str) -> None:
        """Forget its cause, so that it is recorded again. The log, `decided` and the metrics have it, too."""
        event = queued.event
        if (history := self._histories.get(event.regarding.uid)) is not None:
            history.causes.get(event.reason, {}).pop(event.discriminator, None)
        log.warning("Event dropped", extra=_log_fields(event) | {"error": why})


def _log_fields(event: ObjectEvent) -> dict[str, object]:
    about = event.regarding
    if about.kind == "Node":
        return {"node": about.name, "reason": event.reason}
    return {"about": f"{about.kind} {about.namespace}/{about.name}", "reason": event.reason}
