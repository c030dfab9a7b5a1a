"""Finds and publishes the enriched messages of one object, in the trace of its observation."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Generic

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import Bus, BusError, Message, event_name
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import EventError
from libs.common.contract.services import METADATA
from libs.common.contract.subjects import object_name_in
from libs.common.observability import metrics, telemetry
from libs.common.observability.telemetry import Attribute, Span, SpanKind, outgoing_headers, span
from services.metadata.clock import Clock
from services.metadata.core.event_equivalence import is_news
from services.metadata.core.object_state import EnrichedT, Observation, Publication

log = logging.getLogger(__name__)

_MAX_LINKS: Final = 8  # to observations that got no answer before the next one arrived

Headers = Mapping[str, str]


class EnrichmentPublisher(Generic[EnrichedT]):
    """Publishes the enrichments of one object in the trace of its observation, and logs a line for each."""

    __slots__ = ("_clock", "_publisher", "_received", "_unanswered")  # there are thousands

    def __init__(self, publisher: OrderedPublisher, clock: Clock) -> None:
        self._publisher = publisher
        self._clock = clock
        self._received: Message | None = None  # the newest live observation, until work on it starts
        self._unanswered: tuple[Headers, ...] = ()  # of observations without an answer before the next one

    def record_received(self, message: Message) -> None:
        """Start the latency of a live observation."""
        self._received = message

    def record_started(self) -> None:
        """End the latency of the observation: work on it starts, or it needs none."""
        if self._received is None:
            return
        age = (self._clock.now() - self._received.published_at).total_seconds()
        event = event_name(self._received.event)
        metrics.HOP_LATENCY.labels(METADATA.service, event).observe(max(0.0, age), telemetry.exemplar())
        self._received = None

    def record_replaced(self, before: Observation[Any]) -> None:
        """Link the next message to this observation too, if it has no answer yet."""
        if before.is_answered or not before.trace_headers:
            self._unanswered = ()
        elif before.trace_headers not in self._unanswered:
            self._unanswered = (*self._unanswered, before.trace_headers)[-_MAX_LINKS:]

    def find_trace(self, observation: Observation[Any]) -> tuple[Headers | None, tuple[Headers, ...]]:
        """Return the parent headers, and those to link to: once it is answered, of the observation itself."""
        headers = observation.trace_headers
        if observation.is_answered:
            return None, (headers,) if headers else ()
        return headers, tuple(each for each in self._unanswered if each != headers)

    def span(
        self, name: str, observation: Observation[Any], attributes: Mapping[str, Attribute], *, kind: SpanKind
    ) -> AbstractContextManager[Span]:
        """Start a span in the trace of the observation, or linked to it once that is answered."""
        parent, links = self.find_trace(observation)
        return span(name, kind=kind, parent_headers=parent, links=links, attributes=attributes)

    async def publish(self, event: EnrichedT, observation: Observation[Any]) -> PublishOutcome | Exception:
        """Publish the answer to the observation. Return the error if the bus or the contract refuses it."""
        parent, links = self.find_trace(observation)
        with self._publisher.publish_span(event, parent_headers=parent, links=links):
            self.record_started()
            try:
                return await self._publisher.publish(event, headers=outgoing_headers())
            except (BusError, TemporaryError, EventError) as error:
                return error

    def log_outcome(
        self,
        event: EnrichedT,
        outcome: PublishOutcome | Exception,
        before: Publication[EnrichedT],
        *,
        reason: str,
        seconds: float,
    ) -> None:
        """Log the publish of this event, at DEBUG if it failed or reports nothing new about the machine."""
        failed = isinstance(outcome, Exception)
        fields = {
            "event": type(event).__name__,
            "attempt": 1 + before.failures,
            "outcome": "refused" if isinstance(outcome, Exception) else outcome.value,
            "reason": str(outcome) if failed else reason,
            "seconds": round(seconds, 4),
        }
        level = logging.INFO if not failed and is_news(event, before.event) else logging.DEBUG
        log.log(level, "handled", extra=fields)


@dataclass(eq=False)
class EnrichedMessages(Generic[EnrichedT]):
    """Finds the enriched messages of one kind by object name."""

    prefix: str  # the part of the subject before the object name
    types: tuple[type[EnrichedT], ...]  # events of that kind
    stream_cache: StreamCache
    publisher: OrderedPublisher
    bus: Bus

    def name_of(self, message: Message) -> str:
        """Return the name of the object that the message is about."""
        return object_name_in(message.subject, self.prefix)

    def subject_of(self, name: str) -> str:
        """Return the subject of the messages about that object."""
        return f"{self.prefix}.{name}"

    def read(self, message: Message | None) -> EnrichedT | None:
        """Return the event of the message; None without a message, or if it is no event of this kind."""
        event = message.event if message is not None else None
        return event if isinstance(event, self.types) else None

    def record_sequence(self, message: Message) -> bool:
        """Record a message of the stream. Return whether it is newer than all that this replica knew."""
        is_new = message.sequence > self.publisher.last_sequence_of(message.subject)
        self.publisher.record_sequence(message.subject, message.sequence)
        return is_new

    def get_last_sequence(self, name: str) -> int:
        """Return the sequence of the last known message about that object, 0 without one."""
        return self.publisher.last_sequence_of(self.subject_of(name))

    def get_last(self, name: str) -> tuple[EnrichedT | None, int]:
        """Return the newest received event about that object with its sequence, or (None, 0)."""
        message = self.stream_cache.get(self.subject_of(name))
        return self.read(message), message.sequence if message is not None else 0

    def get_publication(self, name: str, clock: Clock) -> Publication[EnrichedT]:
        """Return the publication of a new object by the stream, to be republished when it is old."""
        stored, now = self.stream_cache.get(self.subject_of(name)), clock.monotonic()
        age = max(0.0, (clock.now() - stored.published_at).total_seconds()) if stored else 0.0
        republish_in = max(0.0, clock.intervals.republish - age)
        return Publication(event=self.read(stored), republish_at=now + republish_in)

    def get_stored(self, name: str) -> EnrichedT | None:
        """Return the event in the stream, None if the last one of this replica is newer."""
        subject = self.subject_of(name)
        message = self.stream_cache.get(subject)
        if message is None or message.sequence < self.publisher.last_sequence_of(subject):
            return None  # the echo of our last message has not arrived yet
        return self.read(message)

    async def fetch_last(self, name: str) -> EnrichedT | None:
        """Fetch the last event about that object from the stream. Raises BusError."""
        return self.read(await self.bus.get_last(self.subject_of(name)))

    def drop_echo(self, name: str, event: EnrichedT) -> None:
        """Remove our message from the cache if its echo arrived before the publish returned."""
        subject = self.subject_of(name)
        if self.read(self.stream_cache.get(subject)) == event:
            self.stream_cache.forget(subject)

    def take_all(self) -> Iterator[tuple[str, EnrichedT | None]]:
        """Return and remove all messages of the cache, as pairs of object name and event."""
        for message in self.stream_cache.list_under(self.prefix):
            yield self.name_of(message), self.read(message)
            self.stream_cache.forget(message.subject)
