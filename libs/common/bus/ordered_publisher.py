"""Publishes events with the last known sequence, and never over a newer event."""

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

MAX_SUBJECTS: Final = 50_000  # bounds the memory for Nodes that never return
_TRIES: Final = 5  # each conflict means another publish got through: after five, retry later


class PublishOutcome(Enum):
    """The result of a publish."""

    PUBLISHED = "published"
    SUPERSEDED = "superseded"  # the stream has a newer event; this one was dropped
    TIED = "tied"  # the stream has an event of the same order: fetch the object again


class OrderedPublisher:
    """Publishes with the last sequence of each subject in the current stream."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._sequences: dict[str, int] = {}

    def record_sequence(self, subject: str, sequence: int) -> None:
        """Record the sequence of a received message as the last one of its subject."""
        self._sequences[subject] = max(sequence, self._sequences.pop(subject, 0))
        if len(self._sequences) > MAX_SUBJECTS:
            oldest = next(iter(self._sequences))
            del self._sequences[oldest]  # costs one more request if the subject is published again

    def forget_all(self) -> None:
        """Forget all sequences: they mean nothing in a new stream."""
        self._sequences.clear()

    def last_sequence_of(self, subject: str) -> int:
        """Return the last known sequence of a subject, 0 if unknown."""
        return self._sequences.get(subject, 0)

    def publish_span(
        self,
        event: Event,
        *,
        parent_headers: Mapping[str, str] | None = None,
        links: Sequence[Mapping[str, str]] = (),
    ) -> AbstractContextManager[telemetry.Span]:
        """Return the span for a publish; pass `telemetry.outgoing_headers` within it as headers."""
        if not telemetry.tracing_is_on():  # the usual case, in which the attributes would not be used
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
        """Publish unless the stream has a newer event. Raises BusError; TemporaryError after 5 conflicts."""
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
            return PublishOutcome.PUBLISHED  # published before, but the acknowledgement was lost
        match compare_events(event, readable, self._bus.stream_id):
            case Recency.NEWER:
                return None
            case Recency.SAME:
                return PublishOutcome.TIED
            case Recency.OLDER:
                return PublishOutcome.SUPERSEDED
