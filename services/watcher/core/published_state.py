"""The watcher's own events that the stream contains, to publish only changes."""

from collections.abc import Callable
from dataclasses import dataclass

from libs.common.bus.protocol import Message, StreamPosition
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import (
    Leading,
    NodeObserved,
    OrderedObservation,
    SnapshotComplete,
)
from libs.common.contract.subjects import OBSERVED_NODE, subject_of
from services.watcher.core.kinds import Kind, ObjectT, ObservedEvent


@dataclass(eq=False, kw_only=True)
class PublishedState:
    """A bus `Follower`: a StreamCache, and the own messages that the stream has not delivered yet.

    `on_sequence` receives each sequence. `on_stream_replaced` is called for another stream ID, `on_change`
    when following begins, is lost or has caught up, and when a leader heartbeat or a greater epoch arrives.
    `on_fenced_message` receives the subject of a message that followers ignore: its publisher is a former
    leader, or knows only a former stream, or it is unreadable.
    """

    clock: Callable[[], float]  # monotonic, in seconds
    on_sequence: Callable[[str, int], None] = lambda subject, sequence: None
    on_stream_replaced: Callable[[], None] = lambda: None
    on_change: Callable[[], None] = lambda: None
    on_fenced_message: Callable[[str], None] = lambda subject: None

    def __post_init__(self) -> None:
        self._cache = StreamCache(
            clock=self.clock,
            should_keep=_is_of_watcher,
            compact=self._share_event,
            on_stream_replaced=self._on_stream_replaced,
        )
        self._undelivered: dict[str, Message] = {}  # own messages, by subject
        self._first_sequence = 0  # of the stream at the last look for lost Nodes
        self._follow_generation = 0
        self._greatest_epoch = 0
        self._leader_heartbeat: Leading | None = None
        self._leader_heartbeat_at = float("-inf")

    @property
    def stream_id(self) -> str:
        """The ID of the followed stream; "" before the first one."""
        return self._cache.stream_id

    @property
    def follow_generation(self) -> int:
        """The number of times that following began, once the replay is complete; 0 while it is not.

        A changed number means that messages may have been missed or lost meanwhile.
        """
        return 0 if self.problems() else self._follow_generation

    @property
    def greatest_epoch(self) -> int:
        """The greatest epoch ever received with this stream ID, even if the stream has lost that message."""
        return self._greatest_epoch

    @property
    def leader_heartbeat(self) -> Leading | None:
        """The last heartbeat of the leader with the greatest epoch; None if this stream had none."""
        return self._leader_heartbeat

    def seconds_since_leader_heartbeat(self) -> float:
        """Return the seconds since the last leader heartbeat; infinite if there was none."""
        return self.clock() - self._leader_heartbeat_at

    def leader_silence_seconds(self) -> float:
        """Return the seconds of following without a leader heartbeat; NaN while not following."""
        return self._cache.leader_silence_seconds()

    def has_newer_leader(self, epoch: int, identity: str) -> bool:
        """Whether another leader has published with this epoch or a higher one."""
        heartbeat = self._leader_heartbeat
        same = heartbeat is not None and heartbeat.epoch == epoch and heartbeat.holder != identity
        return same or self._greatest_epoch > epoch

    def problems(self) -> tuple[str, ...]:
        """Return why this state may differ from the stream, in words for /readyz."""
        return self._cache.connection_problems()

    def get(self, kind: Kind[ObjectT], name: str) -> ObservedEvent | None:
        """Return the last observation of that name, even if fenced; None if there is none."""
        message = self._last_message(f"{kind.subject}.{name}")
        return message.event if message is not None and isinstance(message.event, ObservedEvent) else None

    def has_later(self, kind: Kind[ObjectT], listed: ObjectT) -> bool:
        """Whether the last epoch published a later state of that name than this object of a new list."""
        event = self.get(kind, listed.key)
        return (
            event is not None
            and event.order.epoch == self._greatest_epoch
            and event.order.resource_version > listed.resource_version_number
        )

    def is_fenced(self, kind: Kind[ObjectT], name: str) -> bool:
        """Whether followers ignore the last message of that name and keep an older one."""
        subject = f"{kind.subject}.{name}"
        invalid, own = self._cache.find_invalid_sequence(subject), self._undelivered.get(subject)
        return invalid > 0 and (own is None or own.sequence <= invalid)

    def names(self, kind: Kind[ObjectT]) -> set[str]:
        """Return the names of the objects that followers may have, or do not know.

        The last message of its subject is the object, or one that followers ignore.
        """
        subjects = self._cache.subjects_under(kind.subject) | self._undelivered.keys()
        found = {subject.removeprefix(f"{kind.subject}.") for subject in subjects}
        return {
            name
            for name in found
            if kind.extract_object(self.get(kind, name)) is not None or self.is_fenced(kind, name)
        }

    @property
    def subject_count(self) -> int:
        """The number of subjects with a message of a watcher that has effect."""
        return len(self._cache)

    def record_published(self, event: ObservedEvent, sequence: int) -> None:
        """Record an event that this process published with that sequence, unless it was delivered before."""
        if event.stream_id != self.stream_id:
            return
        subject = subject_of(event)
        delivered = self._cache.get(subject)
        if delivered is None or delivered.sequence < sequence:
            self._undelivered[subject] = Message(
                subject=subject, event=event, sequence=sequence, published_at=event.observed_at
            )
        elif delivered.sequence == sequence:
            self._cache.share_event(subject, event)  # its object is in the store

    def has_lost_nodes(self, first_sequence: int) -> bool:
        """Whether Nodes precede the oldest message of the stream that did not at the last call.

        Their messages are published again before they expire, so the stream was purged. Followers still have
        the Nodes, so a deletion must still be published.
        """
        known, self._first_sequence = self._first_sequence, first_sequence
        return any(
            known <= message.sequence < first_sequence
            and isinstance(message.event, NodeObserved)
            and message.subject not in self._undelivered
            and not self._cache.find_invalid_sequence(message.subject)
            for message in self._cache.list_under(OBSERVED_NODE)
        )

    # ---- bus.Follower

    def start_replay(self, position: StreamPosition) -> None:
        self._follow_generation += 1
        self._undelivered.clear()  # the replay delivers them, or the stream has lost them
        self._first_sequence = 0  # another stream, or one that was cut, counts from a lower one
        self._cache.start_replay(position)
        self.on_change()

    def apply(self, message: Message) -> None:
        subject, event = message.subject, message.event
        self.on_sequence(subject, message.sequence)
        self._cache.apply(message)
        own, delivered = self._undelivered.get(subject), self._cache.get(subject)
        if own is not None and delivered is not None and delivered.sequence >= own.sequence:
            del self._undelivered[subject]
        if self._cache.find_invalid_sequence(subject) == message.sequence:
            self.on_fenced_message(subject)
        elif isinstance(event, Leading):
            self._leader_heartbeat, self._leader_heartbeat_at = event, self.clock()
            self.on_change()
        if self._cache.greatest_epoch > self._greatest_epoch:
            self._greatest_epoch = self._cache.greatest_epoch
            self.on_change()

    def finish_replay(self) -> None:
        self._cache.finish_replay()
        self.on_change()

    def mark_caught_up(self) -> None:
        self._cache.mark_caught_up()

    def mark_disconnected(self, reason: str) -> None:
        self._cache.mark_disconnected(reason)
        self.on_change()

    def _on_stream_replaced(self) -> None:
        self._greatest_epoch = 0
        self._leader_heartbeat = None
        self.on_stream_replaced()

    def _share_event(self, message: Message) -> Message:
        """Return the same message as it was published, whose object is in the store; else this one."""
        own, known = self._undelivered.get(message.subject), self._cache.get(message.subject)
        if own is not None and own.sequence == message.sequence:
            return own
        # In a replay, but the stream may have lost that message and reused its sequence.
        is_same = known is not None and known.sequence == message.sequence and known.event == message.event
        return known if known is not None and is_same else message

    def _last_message(self, subject: str) -> Message | None:
        """Return the last message of this stream, whether or not followers ignore it."""
        last = self._cache.get(subject)
        for other in (self._undelivered.get(subject), self._cache.get_fenced(subject)):
            if other is None or self._cache.is_of_another_stream(other):
                continue
            if last is None or last.sequence < other.sequence:
                last = other
        return last


def _is_of_watcher(message: Message) -> bool:
    return isinstance(message.event, OrderedObservation | SnapshotComplete | Leading)
