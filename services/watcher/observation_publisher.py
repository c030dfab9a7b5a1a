"""Publishes observations of changed objects: in parallel across objects, in order for each, with retries."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, Generic

from libs.common.bus.delivery import TemporaryError, backoff_seconds
from libs.common.bus.ordered_publisher import MAX_SUBJECTS, OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError, NoStream, StreamFull
from libs.common.contract.events import EventError
from libs.common.contract.subjects import ROOT, subject_of
from libs.common.observability import metrics, telemetry
from libs.common.observability.trace_attributes import event_attributes
from services.watcher.core.kinds import Kind, ObjectT, ObservedEvent
from services.watcher.core.publish_decision import (
    CHANGED_REASON,
    REPUBLISH_REASON,
    ConfirmAbsence,
    FencingToken,
    Publish,
    Skip,
    decide_absent,
    decide_present,
    select_due,
)
from services.watcher.core.published_state import PublishedState
from services.watcher.core.store import Store
from services.watcher.core.work_queue import WorkItem, WorkQueue
from services.watcher.resync_requests import ResyncRequests

log = logging.getLogger(__name__)

# Asks the API server for the resourceVersion at which no object has that name; None if one has. Raises
# TemporaryError without an answer.
AbsenceCheck = Callable[[str], Awaitable[int | None]]
# before the first publish of an object that newer ones may evict at any moment
EVICTION_GRACE_SECONDS: Final = 5.0


@dataclass(eq=False)
class ObservationPublisher(Generic[ObjectT]):
    """Publishes the observations of one kind, while a round has given it a fencing token."""

    kind: Kind[ObjectT]
    store: Store[ObjectT]
    _: KW_ONLY
    published: PublishedState
    publisher: OrderedPublisher
    requests: ResyncRequests
    in_flight: int
    now: Callable[[], datetime]
    jitter: Callable[[], float]

    def __post_init__(self) -> None:
        self._queue = WorkQueue(
            in_flight=self.in_flight,
            max_cooldown_seconds=self.kind.max_cooldown_seconds,
            is_settling=self._is_settling,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: float | None = None
        self._token: FencingToken | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._absent_as_of: AbsenceCheck  # set by `run`, before any item is processed
        self._last_error = ""
        self._skipped: dict[str, str] = {}
        # last message's headers by name, while tracing is on
        self._traces: dict[str, Mapping[str, str]] = {}

    @property
    def is_in_round(self) -> bool:
        """Whether the kind takes part in the present round."""
        return self._token is not None

    @property
    def is_round_complete(self) -> bool:
        """Whether every object of the round was published or skipped; True outside a round."""
        return self._token is None or self._queue.is_round_complete

    def problems(self) -> tuple[str, ...]:
        """Return why the stream may lack observations, in words for /readyz."""
        if not self._last_error:
            return ()
        waiting = f"{self._queue.pending_count} observations of {self.kind.resource} wait to be published"
        return (f"{waiting}: {self._last_error}",)

    async def run(self, absent_as_of: AbsenceCheck) -> None:
        """Process work items until cancelled."""
        self._absent_as_of = absent_as_of
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                self._start()
                await asyncio.Event().wait()
            finally:  # no timer may start a task while the tasks end
                self._tasks = None
                self._set_timer(None)

    def enqueue(self, names: Collection[str]) -> None:
        """Publish these objects if they have changed."""
        now = asyncio.get_running_loop().time()
        for name in names:
            if self.published.get(self.kind, name) is None and self.store.may_be_evicted(name):
                # The requester files requests without end. An object evicted during the delay was never
                # published, so it needs no deletion message either: both would fill the stream.
                self._queue.add_delayed(name, now + EVICTION_GRACE_SECONDS)
            elif self._is_urgent(name):
                self._queue.add(name, is_urgent=True)
            else:
                self._queue.add_change(name, now)
        self._start()

    def enqueue_subject(self, subject: str) -> None:
        """Publish the object of a fenced message again; ignore subjects of other kinds."""
        if subject.startswith(f"{self.kind.subject}."):
            self.enqueue((subject.removeprefix(f"{self.kind.subject}."),))

    def republish(self, *, since: float, until: float) -> None:
        """Publish unchanged objects with an offset in [since, until), both fractions of a resync period.

        Also objects of the stream that the store lacks: a former leader may publish one late.
        """
        due = select_due(self.store, since=since, until=until)
        names = [each.key for each in due if self.kind.is_republished(each)]
        if not since:  # once per period
            names += self.published.names(self.kind) - self.store.names()
        for name in names:
            self._queue.add(name, force=True)
        self._start()

    def start_round(self, token: FencingToken) -> None:
        """Begin a round: publish all objects of store and stream with this token, then every change."""
        self._token = token
        self._queue.start_round(self.store.names() | self.published.names(self.kind))
        self._start()

    def pause(self) -> None:
        """Start no publish until the next `start_round`: the stream may have been replaced."""
        self._token = None

    def _start(self) -> None:
        while self._tasks is not None and self._token is not None and (item := self._queue.get()) is not None:
            self._tasks.create_task(self._run(item, self._token))
        if self._tasks is not None and self._queue.next_due != self._timer_due:
            self._set_timer(self._queue.next_due)

    def _set_timer(self, due: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._on_due, due) if due is not None else None
        self._timer_due = due

    def _on_due(self, due: float) -> None:
        self._timer = self._timer_due = None
        self._queue.end_delays(max(due, asyncio.get_running_loop().time()))
        self._start()

    async def _run(self, item: WorkItem, token: FencingToken) -> None:
        is_published = False
        try:
            is_published = await self._decide_and_publish(item, token)
        except (BusError, TemporaryError) as error:
            self._schedule_retry(item.name, error)
        except EventError as error:
            self._skip(item.name, str(error))
            self._finish(item.name, is_published)
        else:
            self._finish(item.name, is_published)
        self.requests.wake()
        self._start()

    async def _decide_and_publish(self, item: WorkItem, token: FencingToken) -> bool:
        """Process one item; return whether a message was published."""
        name = item.name
        if self.store.get(name) is None:
            self._skipped.pop(name, None)
        match await self._decide(name, token, force=item.force):
            case Publish(event=event, reason=reason):
                return await self._publish(name, event, reason)
            case Skip(reason=reason):
                self._skip(name, reason)
        return False

    async def _decide(
        self, name: str, token: FencingToken, *, force: bool
    ) -> Publish | Skip | ConfirmAbsence | None:
        """Return the decision; None if nothing has changed, or the state is unknown."""
        decision = self._decide_at(name, token, force=force)
        if not isinstance(decision, ConfirmAbsence):
            return decision
        published = self.published.get(self.kind, name)
        version = await self._absent_as_of(name)
        if version is None or self.published.get(self.kind, name) is not published:
            # The object exists, or a newer observation was published meanwhile: a later item decides.
            return None
        return self._decide_at(name, token, force=force, absent_as_of=version)

    def _decide_at(
        self, name: str, token: FencingToken, *, force: bool, absent_as_of: int | None = None
    ) -> Publish | Skip | ConfirmAbsence | None:
        kind, found, published = self.kind, self.store.get(name), self.published.get(self.kind, name)
        now, is_fenced = self.now(), self.published.is_fenced(kind, name)
        if found is not None:
            return decide_present(kind, found, published, token, now=now, force=force, is_fenced=is_fenced)
        if self.store.is_unreadable(name) or not self.store.has_synced:
            return None
        return decide_absent(
            kind,
            name,
            published,
            token,
            last_resource_version=max(self.store.last_resource_version, absent_as_of or 0),
            now=now,
            is_confirmed=absent_as_of is not None,
            is_fenced=is_fenced,
        )

    async def _publish(self, name: str, event: ObservedEvent, reason: str) -> bool:
        clock = asyncio.get_running_loop().time
        began = clock()
        previous = self._traces.pop(name, None)
        links = (previous,) if previous else ()
        attributes = event_attributes(event) if telemetry.tracing_is_on() else {}
        with telemetry.span("watch event", links=links, attributes=attributes) as span:
            span.set_attributes({"talosccm.reason": reason})
            outcome = await self._send(name, event)
            span.set_attributes({"talosccm.outcome": outcome.value})
        if outcome is PublishOutcome.PUBLISHED:
            self.published.record_published(event, self.publisher.last_sequence_of(subject_of(event)))
            self._skipped.pop(name, None)
        fields: dict[str, object] = {
            "event": type(event).__name__,
            "reason": reason,
            "outcome": outcome.value,
        }
        fields |= {"attempt": 1 + self._queue.failure_count(name), "seconds": round(clock() - began, 4)}
        # a joining Node changes several times, and the resync republishes every object
        is_frequent = reason in {REPUBLISH_REASON, CHANGED_REASON}
        log.log(
            logging.INFO if self.kind.is_logged and not is_frequent else logging.DEBUG,
            self.kind.log_message,
            extra=self._log_fields(name) | fields,
        )
        return outcome is PublishOutcome.PUBLISHED

    async def _send(self, name: str, event: ObservedEvent) -> PublishOutcome:
        with self.publisher.publish_span(event) as span:
            headers = telemetry.outgoing_headers()
            outcome = await self.publisher.publish(event, headers=headers)
            span.set_attributes({"talosccm.stream.seq": self.publisher.last_sequence_of(subject_of(event))})
        if headers:
            self._traces[name] = headers
            if len(self._traces) > MAX_SUBJECTS:
                del self._traces[next(iter(self._traces))]
        return outcome

    def _schedule_retry(self, name: str, error: Exception) -> None:
        delay = backoff_seconds(self._queue.count_failure(name), self.jitter())
        self._queue.retry_at(name, asyncio.get_running_loop().time() + delay)
        if not self._last_error:  # log an outage once, although it affects every object
            log.warning("publish failed, will retry", extra=self._log_fields(name) | {"error": str(error)})
        self._last_error = str(error)
        if isinstance(error, NoStream):
            self.requests.request_round()
        if isinstance(error, StreamFull):
            self.requests.request_growth()

    def _finish(self, name: str, is_published: bool) -> None:
        cools_down = is_published and not self._is_urgent(name)
        self._queue.done(name, published_at=asyncio.get_running_loop().time() if cools_down else None)
        if self._last_error and not self._queue.failing_count:
            self._last_error = ""
            log.info("publishing works again", extra={"resource": self.kind.resource})

    def _is_urgent(self, name: str) -> bool:
        """Whether the object is deleted, replaced by another uid, or followers ignore its last message."""
        found, published = self.store.get(name), self.published.get(self.kind, name)
        known = self.kind.extract_object(published)
        is_fenced = self.published.is_fenced(self.kind, name)
        return is_fenced or found is None or known is None or known.uid != found.uid

    def _is_settling(self, name: str) -> bool:
        found = self.store.get(name)
        return found is not None and self.kind.is_settling(found)

    def _skip(self, name: str, reason: str) -> None:
        if self._skipped.get(name) != reason:
            self._skipped[name] = reason
            metrics.PUBLISHED.labels(self.kind.subject.removeprefix(f"{ROOT}."), "skipped").inc()
            log.error(
                "object skipped: cannot be published",
                extra=self._log_fields(name) | {"reason": reason},
            )

    def _log_fields(self, name: str) -> dict[str, str]:
        return {self.kind.log_field: name}
