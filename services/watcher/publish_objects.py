"""Says what is news of each object, in parallel over objects and in order for each, until it is said."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Final, Generic

from libs.common import metrics, telemetry
from libs.common.bus import BusError, NoStream, StreamFull
from libs.common.delivery import TemporaryError, backoff_seconds
from libs.common.events import EventError
from libs.common.journey import Attributes, about
from libs.common.publisher import MOST_SUBJECTS, OrderedPublisher, Outcome
from libs.common.subjects import ROOT, subject_of
from services.watcher.agenda import Agenda, Errand, rest_seconds
from services.watcher.held import HeldFlow
from services.watcher.kinds import Kind, Said, Seen
from services.watcher.observe import (
    SAID_AGAIN,
    Publish,
    Skipped,
    Stamp,
)
from services.watcher.observe_objects import ObjectObserver
from services.watcher.store import Store

log = logging.getLogger(__name__)

CROWDED_SECONDS: Final = 5.0  # before the first word of what may lose its place to newer ones at any moment


class ObjectPublisher(Generic[Seen]):
    """The mouth of one term for one kind; silent until it has a stamp, and again after `pause`."""

    def __init__(
        self,
        kind: Kind[Seen],
        store: Store[Seen],
        *,
        held: HeldFlow,
        publisher: OrderedPublisher,
        in_flight: int,
        now: Callable[[], datetime],
        jitter: Callable[[], float],
        absent_as_of: Callable[[str], Awaitable[int | None]],
        on_settled: Callable[[], None] = lambda: None,
        on_no_stream: Callable[[], None] = lambda: None,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        """`absent_as_of` is the observer's; `on_settled` hears that an errand ended.

        `on_no_stream` is called when there was no stream to publish to, `on_full` when a full stream refuses
        an observation.
        """
        self._kind = kind
        self._store = store
        self._held = held
        self._publisher = publisher
        self._agenda = Agenda(in_flight=in_flight)
        self._jitter = jitter
        self._observer = ObjectObserver(kind, store, held, now=now, absent_as_of=absent_as_of)
        self._on_settled = on_settled
        self._on_no_stream = on_no_stream
        self._on_full = on_full
        self._stamp: Stamp | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._trouble = ""
        self._skipped: dict[str, str] = {}
        self._traces: dict[str, Mapping[str, str]] = {}  # of each name's last word, while traces are on

    @property
    def round_complete(self) -> bool:
        """Whether all that `say_all` named last has been said, or cannot be."""
        return self._agenda.round_complete

    def problems(self) -> tuple[str, ...]:
        """Why something is not said, in words for /readyz."""
        if not self._trouble:
            return ()
        waiting = f"{self._agenda.waiting} observations of {self._kind.plural} wait to be published"
        return (f"{waiting}: {self._trouble}",)

    async def run(self) -> None:
        """Carry out errands until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._start()
                await asyncio.Event().wait()
        finally:
            self._tasks = None

    def say(self, names: Collection[str]) -> None:
        """There is news of these."""
        for name in names:
            if self._held.of(self._kind, name) is None and self._store.is_crowded(name):
                # Its requester asks without end. What has lost its place until then was never said, and so
                # is not said to be gone either: each of the two words would stay in the stream for an hour.
                asyncio.get_running_loop().call_later(CROWDED_SECONDS, self._say_if_left, name)
            else:
                self._want(name)
        self._start()

    def _say_if_left(self, name: str) -> None:
        if self._store.get(name) is not None:
            self._want(name)
            self._start()

    def _want(self, name: str) -> None:
        self._agenda.want(name)
        if self._cannot_wait(name):
            self._agenda.rested(name)

    def say_again(self, names: Collection[str]) -> None:
        """It is the turn of these in the resync."""
        for name in names:
            self._agenda.want(name, anyway=True)
        self._start()

    def say_all(self, stamp: Stamp, names: Collection[str]) -> None:
        """Begin a round: all of these are said with this stamp, and from now on everything is."""
        self._stamp = stamp
        self._agenda.begin_round(names)
        self._start()

    def pause(self) -> None:
        """Start nothing more until the next `say_all`: the stream may be another one."""
        self._stamp = None

    def _start(self) -> None:
        while (
            self._tasks is not None
            and self._stamp is not None
            and (errand := self._agenda.take()) is not None
        ):
            self._tasks.create_task(self._run(errand, self._stamp))

    async def _run(self, errand: Errand, stamp: Stamp) -> None:
        said = False
        try:
            said = await self._look_and_say(errand, stamp)
        except (BusError, TemporaryError) as error:
            self._try_later(errand.name, error)
        except EventError as error:
            self._skip(errand.name, str(error))
            self._settle(errand.name, said)
        else:
            self._settle(errand.name, said)
        self._on_settled()
        self._start()

    async def _look_and_say(self, errand: Errand, stamp: Stamp) -> bool:
        """Whether it was said."""
        name = errand.name
        if self._store.get(name) is None:
            self._skipped.pop(name, None)
        match await self._observer.observe(name, stamp, anyway=errand.anyway):
            case Publish(event=event, reason=reason):
                return await self._publish(name, event, reason)
            case Skipped(reason=reason):
                self._skip(name, reason)
        return False

    async def _publish(self, name: str, event: Said, reason: str) -> bool:
        clock = asyncio.get_running_loop().time
        began = clock()
        with telemetry.span(
            "watch event", links=self._earlier(name), attributes=self._told_of(event)
        ) as span:
            span.set({"talosccm.reason": reason})
            outcome = await self._send(name, event)
            span.set({"talosccm.outcome": outcome.value})
        if outcome is Outcome.PUBLISHED:
            self._held.said(event, self._publisher.sequence_of(subject_of(event)))
            self._skipped.pop(name, None)
        told: dict[str, object] = {
            "event": type(event).__name__,
            "reason": reason,
            "outcome": outcome.value,
        }
        told |= {"attempt": 1 + self._agenda.failures(name), "seconds": round(clock() - began, 4)}
        again = reason == SAID_AGAIN  # every five minutes, of each object
        log.log(logging.DEBUG if again else logging.INFO, self._kind.message, extra=self._of(name) | told)
        return outcome is Outcome.PUBLISHED

    async def _send(self, name: str, event: Said) -> Outcome:
        with self._publisher.sending(event) as span:
            headers = telemetry.outgoing_headers()
            outcome = await self._publisher.publish(event, headers=headers)
            span.set({"talosccm.stream.seq": self._publisher.sequence_of(subject_of(event))})
        if headers:
            self._traces[name] = headers
            if len(self._traces) > MOST_SUBJECTS:
                del self._traces[next(iter(self._traces))]
        return outcome

    def _earlier(self, name: str) -> tuple[Mapping[str, str], ...]:
        """The trace of what was said of it before: a resync and a change name what they follow."""
        headers = self._traces.pop(name, None)
        return (headers,) if headers else ()

    @staticmethod
    def _told_of(event: Said) -> Attributes:
        return about(event) if telemetry.tracing_is_on() else {}

    def _try_later(self, name: str, error: Exception) -> None:
        attempt = self._agenda.failed(name)
        delay = backoff_seconds(attempt, self._jitter())
        asyncio.get_running_loop().call_later(delay, self._retry, name)
        if not self._trouble:  # an outage concerns every object: it is told once
            log.warning("observations cannot be published", extra=self._of(name) | {"error": str(error)})
        self._trouble = str(error)
        if isinstance(error, NoStream):
            self._on_no_stream()
        if isinstance(error, StreamFull):
            self._on_full()

    def _retry(self, name: str) -> None:
        self._agenda.retry(name)
        self._start()

    def _settle(self, name: str, said: bool) -> None:
        self._agenda.done(name, rests=said)
        if said and self._cannot_wait(name):
            self._agenda.rested(name)
        elif said:
            # A joining node is changed half a dozen times: by its kubelet, by controllers, by us. Its first
            # word leaves at once, and so does its end; nobody waits for what comes in between, and every
            # word costs each service about half a millisecond.
            rest = rest_seconds(self._agenda.resting, at_most=self._kind.rest_cap_seconds)
            asyncio.get_running_loop().call_later(rest, self._rested, name)
        if self._trouble and not self._agenda.failing:
            self._trouble = ""
            log.info("observations are published again", extra={"resource": self._kind.plural})

    def _cannot_wait(self, name: str) -> bool:
        """Whether that object is gone, or another one than was last said, or followers ignore what was."""
        found, held = self._store.get(name), self._held.of(self._kind, name)
        known = self._kind.said(held) if held is not None else None
        is_void = self._held.is_void(self._kind, name)
        return is_void or found is None or known is None or known.uid != found.uid

    def _rested(self, name: str) -> None:
        self._agenda.rested(name)
        self._start()

    def _skip(self, name: str, reason: str) -> None:
        if self._skipped.get(name) != reason:
            self._skipped[name] = reason
            metrics.PUBLISHED.labels(self._kind.subject.removeprefix(f"{ROOT}."), "skipped").inc()
            log.error(
                "an object cannot be published, the others are", extra=self._of(name) | {"reason": reason}
            )

    def _of(self, name: str) -> dict[str, str]:
        return {self._kind.noun: name}
