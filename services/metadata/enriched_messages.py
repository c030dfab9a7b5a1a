"""The enriched messages of one kind, in the stream and published by this replica."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import Bus, Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.subjects import object_name_in
from services.metadata.clock import Clock
from services.metadata.object_state import EnrichedT, Publication


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

    def has_published(self, name: str) -> bool:
        """Return whether the stream has or had a message about that object."""
        return self.get_last_sequence(name) > 0

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
