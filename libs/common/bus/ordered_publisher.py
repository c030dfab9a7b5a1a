"""Publishes what has a place in an order: with the last sequence known, and yielding to what is newer."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Final

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import Bus, UnreadablePayload, WrongLastSequence
from libs.common.contract.events import Event, encode
from libs.common.contract.ordering import Recency, compare_events
from libs.common.contract.subjects import subject_of
from libs.common.observability import telemetry
from libs.common.observability.trace_attributes import publish_attributes

MAX_SUBJECTS: Final = 50_000  # names of Nodes that never return must not pile up
_TRIES: Final = 5  # each loss means that somebody else got through: five in a row is a storm, come back later


class PublishOutcome(Enum):
    """What became of an event."""

    PUBLISHED = "published"
    SUPERSEDED = "superseded"  # the stream holds a newer one, ours was dropped
    TIED = "tied"  # the stream holds one of the same order: look at the object again


class OrderedPublisher:
    """Remembers, per subject, the last sequence it has seen in this incarnation of the stream."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._sequences: dict[str, int] = {}

    def record_sequence(self, subject: str, sequence: int) -> None:
        """The stream holds this sequence for the subject (heard while following)."""
        self._sequences[subject] = max(sequence, self._sequences.pop(subject, 0))
        if len(self._sequences) > MAX_SUBJECTS:
            del self._sequences[
                next(iter(self._sequences))
            ]  # heard of least lately; it costs one more question

    def forget_all(self) -> None:
        """The stream is another one: no sequence known is worth anything."""
        self._sequences.clear()

    def last_sequence_of(self, subject: str) -> int:
        """The last sequence known for a subject, 0 for none."""
        return self._sequences.get(subject, 0)

    def publish_span(
        self,
        event: Event,
        *,
        parent_headers: Mapping[str, str] | None = None,
        links: Sequence[Mapping[str, str]] = (),
    ) -> AbstractContextManager[telemetry.Span]:
        """A span to publish it in; `telemetry.outgoing_headers` in there go with it."""
        if not telemetry.tracing_is_on():  # most of the time, and then nobody reads what it would bear
            return telemetry.span("")
        attributes = publish_attributes(event, system=self._bus.system, size=len(encode(event)))
        return telemetry.span(
            f"send {attributes['messaging.destination.template']}",
            kind="producer",
            parent_headers=parent_headers,
            links=links,
            attributes=attributes,
        )

    async def publish(
        self, event: Event, *, headers: Mapping[str, str] | None = None, ttl_seconds: int | None = None
    ) -> PublishOutcome:
        """Publish unless the stream holds something newer. Raises BusError, TemporaryError after a storm."""
        subject = subject_of(event)
        for _ in range(_TRIES):
            try:
                sequence = await self._bus.publish(
                    event,
                    expected_sequence=self._sequences.get(subject, 0),
                    ttl_seconds=ttl_seconds,
                    headers=headers,
                )
            except WrongLastSequence:
                outcome = await self._resolve_conflict(event, subject)
                if outcome is not None:
                    return outcome
            else:
                self.record_sequence(subject, sequence)
                return PublishOutcome.PUBLISHED
        raise TemporaryError("the bus refused the sequence repeatedly", f"{subject}, {_TRIES} times")

    async def _resolve_conflict(self, event: Event, subject: str) -> PublishOutcome | None:
        theirs = await self._bus.get_last(subject)
        self._sequences[subject] = theirs.sequence if theirs else 0
        readable = None if theirs is None or isinstance(theirs.event, UnreadablePayload) else theirs.event
        if readable == event:
            return PublishOutcome.PUBLISHED  # our own, whose acknowledgement was lost
        match compare_events(event, readable, self._bus.stream_id):
            case Recency.NEWER:
                return None
            case Recency.SAME:
                return PublishOutcome.TIED
            case Recency.OLDER:
                return PublishOutcome.SUPERSEDED
