"""The watcher's own events that the stream contains, to publish only changes."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import nan

import msgspec

from libs.common.bus.protocol import Message, StreamPosition, UnreadablePayload
from libs.common.bus.stream_cache import connection_problems
from libs.common.bus.stream_limits import has_expired
from libs.common.contract.events import Leading, ObjectGone, OrderedObservation, SnapshotComplete
from libs.common.contract.ordering import epoch_of, is_from_former_leader, stream_id_of
from libs.common.contract.subjects import subject_of
from services.watcher.core.kinds import Kind, ObjectT, ObservedEvent


class _Entry(msgspec.Struct, frozen=True):
    sequence: int
    event: ObservedEvent | SnapshotComplete
    is_fenced: bool = False  # followers ignore the last message of the subject


@dataclass(eq=False, kw_only=True)
class PublishedState:
    """A bus `Follower` that also stores own messages at once, before the stream delivers them.

    Smaller than a StreamCache: it ignores enriched messages, and keeps each own observation once, as the
    published object. `on_sequence` receives each sequence. `on_stream_replaced` is called for another stream
    ID, `on_change` when following begins, is lost or has caught up, and when a leader heartbeat arrives.
    `on_fenced_message` receives the subject of a message that followers ignore: its publisher is a former
    leader, or knows only a former stream.
    """

    clock: Callable[[], float]  # monotonic, in seconds
    on_sequence: Callable[[str, int], None] = lambda subject, sequence: None
    on_stream_replaced: Callable[[], None] = lambda: None
    on_change: Callable[[], None] = lambda: None
    on_fenced_message: Callable[[str], None] = lambda subject: None

    def __post_init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._replayed: set[str] = set()
        # subject -> sequence of a message that was published for another stream
        self._foreign: dict[str, int] = {}
        self._opened = StreamPosition(stream_id="", last_sequence=0)
        self._leader_heartbeat: Leading | None = None
        self._leader_heartbeat_at = float("-inf")
        self._followed_since = 0.0
        self._follow_generation = 0
        self._greatest_epoch = 0
        self._sequence = 0  # the highest sequence received
        self._replaying = True
        self._disconnect_reason = "not connected yet"

    @property
    def stream_id(self) -> str:
        """The ID of the followed stream; "" before the first one."""
        return self._opened.stream_id

    @property
    def follow_generation(self) -> int:
        """The number of times that following began, once the replay is complete; 0 while it is not.

        A changed number means that messages may have been missed or lost meanwhile.
        """
        return 0 if self._disconnect_reason or self._replaying else self._follow_generation

    @property
    def greatest_epoch(self) -> int:
        """The greatest epoch of any observation, snapshot or Leading in this stream."""
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
        return (
            nan
            if self.follow_generation == 0
            else self.clock() - max(self._followed_since, self._leader_heartbeat_at)
        )

    def has_newer_leader(self, epoch: int, identity: str) -> bool:
        """Whether another leader has published with this epoch or a higher one."""
        heartbeat = self._leader_heartbeat
        same = heartbeat is not None and heartbeat.epoch == epoch and heartbeat.holder != identity
        return same or self._greatest_epoch > epoch

    def problems(self) -> tuple[str, ...]:
        """Return why this state may differ from the stream, in words for /readyz."""
        return connection_problems(self._disconnect_reason, replaying=self._replaying)

    def get(self, kind: Kind[ObjectT], name: str) -> ObservedEvent | None:
        """Return the last observation of that name; None if there is none."""
        entry = self._entries.get(f"{kind.subject}.{name}")
        return entry.event if entry is not None and not isinstance(entry.event, SnapshotComplete) else None

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
        entry = self._entries.get(f"{kind.subject}.{name}")
        return entry is not None and entry.is_fenced

    def names(self, kind: Kind[ObjectT]) -> set[str]:
        """Return the names of the objects that followers may have.

        The last message of its subject is the object, or a fenced deletion.
        """
        names = set()
        for subject, entry in self._entries.items():
            event = entry.event
            if (found := kind.extract_object(event)) is not None:
                names.add(found.key)
            elif (
                entry.is_fenced and isinstance(event, ObjectGone) and subject == f"{kind.subject}.{event.key}"
            ):
                names.add(event.key)
        return names

    @property
    def subject_count(self) -> int:
        """The number of subjects with an observation or snapshot of a watcher."""
        return len(self._entries)

    def record_published(self, event: ObservedEvent, sequence: int) -> None:
        """Record an event that this process published with that sequence."""
        if event.stream_id == self.stream_id:
            self._store(subject_of(event), event, sequence)

    # ---- bus.Follower

    def start_replay(self, position: StreamPosition) -> None:
        is_other_stream = position.stream_id != self._opened.stream_id
        self._opened = position
        self._follow_generation += 1
        self._sequence = 0 if is_other_stream else min(self._sequence, position.last_sequence)
        self._replayed.clear()
        self._foreign.clear()
        self._replaying = True
        self._disconnect_reason = ""
        if is_other_stream:
            self._entries.clear()
            self._greatest_epoch = 0
            self._leader_heartbeat = None
            self.on_stream_replaced()
        # Messages beyond the end of the stream were acknowledged earlier and lost with a disk.
        self._drop(
            {subject for subject, entry in self._entries.items() if entry.sequence > position.last_sequence}
        )
        self.on_change()

    def apply(self, message: Message) -> None:
        if self._replaying:
            self._replayed.add(message.subject)
        self.on_sequence(message.subject, message.sequence)
        is_new, self._sequence = message.sequence > self._sequence, max(message.sequence, self._sequence)
        event = message.event
        if isinstance(event, UnreadablePayload):
            return
        if stream_id_of(event) != self.stream_id:
            self._apply_foreign(message)
            return
        match event:
            case Leading():
                self._apply_heartbeat(event)
            case OrderedObservation() | SnapshotComplete():
                is_fenced = is_new and is_from_former_leader(event, self._greatest_epoch)
                self._drop_lost(message)
                self._store(message.subject, event, message.sequence, is_fenced=is_fenced)
                if isinstance(event, SnapshotComplete):
                    self._drop(self._expired_deletions(message.published_at))
            case _:
                return  # published by other services
        if epoch_of(event) > self._greatest_epoch:
            self._greatest_epoch = epoch_of(event)
            self.on_change()

    def finish_replay(self) -> None:
        end = self._opened.last_sequence
        self._drop(
            {s for s, entry in self._entries.items() if entry.sequence <= end and s not in self._replayed}
        )
        self._replayed.clear()
        self._replaying = False
        self._followed_since = self.clock()
        self.on_change()

    def mark_caught_up(self) -> None: ...

    def mark_disconnected(self, reason: str) -> None:
        self._disconnect_reason = reason or "connection lost"
        self.on_change()

    def _apply_foreign(self, message: Message) -> None:
        """Fence an event of this stream that a foreign message has replaced: new followers do not get it."""
        self._foreign[message.subject] = message.sequence
        known = self._entries.get(message.subject)
        if known is not None and known.sequence < message.sequence:
            self._entries[message.subject] = msgspec.structs.replace(known, is_fenced=True)
            self.on_fenced_message(message.subject)

    def _apply_heartbeat(self, leading: Leading) -> None:
        if (
            self._leader_heartbeat is None or leading.epoch >= self._leader_heartbeat.epoch
        ):  # otherwise from a former leader: ignored
            self._leader_heartbeat = leading
            self._leader_heartbeat_at = self.clock()
            self.on_change()

    def _store(
        self, subject: str, event: ObservedEvent | SnapshotComplete, sequence: int, *, is_fenced: bool = False
    ) -> None:
        known = self._entries.get(subject)
        is_fenced = is_fenced or sequence < self._foreign.get(subject, 0)
        if known is None or sequence > known.sequence:
            self._entries[subject] = _Entry(sequence, event, is_fenced)
        elif is_fenced and sequence == known.sequence:  # own message, after one of a newer leader
            self._entries[subject] = _Entry(sequence, known.event, is_fenced)
        else:
            return
        if is_fenced:
            self.on_fenced_message(subject)

    def _drop_lost(self, replayed: Message) -> None:
        """Drop the later message of that subject if the stream has lost it, and reuses its sequence.

        The stream has one message per subject. If the later one still exists, the replay delivers it, too.
        """
        known = self._entries.get(replayed.subject)
        end = self._opened.last_sequence
        if self._replaying and known is not None and replayed.sequence < known.sequence <= end:
            self._drop({replayed.subject})

    def _expired_deletions(self, now: datetime) -> set[str]:
        return {
            subject
            for subject, entry in self._entries.items()
            if isinstance(entry.event, ObjectGone) and has_expired(entry.event.observed_at, now)
        }

    def _drop(self, subjects: set[str]) -> None:
        for subject in subjects:
            del self._entries[subject]  # expired or lost
