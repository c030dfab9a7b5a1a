"""A cache of the last message of each subject, which knows whether the set is complete."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import nan
from typing import Final

from msgspec.structs import replace

from libs.common.bus.protocol import Message, StreamPosition, UnreadablePayload
from libs.common.bus.stream_limits import has_expired
from libs.common.contract.events import (
    EnrichedCsrGone,
    EnrichedNodeGone,
    Event,
    Leading,
    ObjectGone,
    SnapshotComplete,
)
from libs.common.contract.ordering import epoch_of, is_from_former_leader, stream_id_of
from libs.common.contract.subjects import SNAPSHOT

FORMER_STREAM: Final = "the followed stream is another one than that of the message"
_NO_LEADER: Final = "no leader heartbeat (is the watcher running?): this service writes nothing"


def connection_problems(disconnect_reason: str, *, replaying: bool) -> tuple[str, ...]:
    """Return why a follower lacks messages, for /readyz; `disconnect_reason` is "" if it is connected."""
    if disconnect_reason:
        return (f"not following the stream: {disconnect_reason}",)
    return ("still replaying the stream",) if replaying else ()


@dataclass(eq=False, kw_only=True)
class StreamCache:
    """A bus `Follower` that stores the last message of each subject.

    The cache is complete when it has applied the last message of every subject of the current stream, and a
    SnapshotComplete with that stream ID is among them. An empty cache is not complete. A SnapshotComplete
    that arrives after the replay takes effect once nothing is pending: before, an object may be missing that
    was published again after it.
    """

    clock: Callable[[], float]  # monotonic, in seconds
    should_keep: Callable[[Message], bool] = lambda message: True  # other messages are not stored
    compact: Callable[[Message], Message] = lambda message: message  # to the form that is stored
    # Receives each valid message in that form, stored or not; a SnapshotComplete, when it takes effect.
    on_message: Callable[[Message], None] = lambda message: None
    on_expired: Callable[[Message], None] = lambda message: None  # a stored message left the stream
    on_stream_replaced: Callable[[], None] = lambda: None  # another stream ID voids the stored messages
    on_caught_up: Callable[[], None] = lambda: None  # after each replay
    on_unreadable: Callable[[], None] = lambda: None  # a message is skipped, as one of a newer version

    def __post_init__(self) -> None:
        self._messages: dict[str, Message] = {}
        self._replayed: set[str] = set()
        # by subject, its last message if that is unreadable (here without bytes) or fenced: see `get_fenced`
        self._invalid: dict[str, Message] = {}
        self._stream_id = ""
        self._disconnect_reason = "not connected yet"
        self._replaying = True
        self._snapshot: Message | None = None  # received, and not in effect yet
        self._sequence = 0
        self._leader_heartbeat_at: float | None = None
        self._followed_since = 0.0
        self._epoch = 0  # the greatest epoch received with this stream ID

    @property
    def stream_id(self) -> str:
        """The ID of the followed stream; "" before the first replay."""
        return self._stream_id

    @property
    def greatest_epoch(self) -> int:
        """The greatest epoch received with this stream ID; 0 before the first."""
        return self._epoch

    @property
    def is_replaying(self) -> bool:
        """Whether the replay is still running: messages were published before it, and more may follow."""
        return self._replaying

    @property
    def is_complete(self) -> bool:
        """Whether the cache is connected and contains every message of the stream."""
        return not self.problems()

    def problems(self) -> tuple[str, ...]:
        """Return why the cache is not complete, in words for /readyz."""
        if unfollowed := self.connection_problems():
            return unfollowed
        if not self._has_snapshot():
            return ("no complete snapshot in this stream yet (is the watcher running?)",)
        return ()

    def connection_problems(self) -> tuple[str, ...]:
        """Return why messages of the stream are missing, whether or not it has a snapshot."""
        return connection_problems(self._disconnect_reason, replaying=self._replaying)

    def seconds_since_leader_heartbeat(self) -> float | None:
        """Return the age of the last live leader heartbeat, None without one."""
        return None if self._leader_heartbeat_at is None else self.clock() - self._leader_heartbeat_at

    def leader_silence_seconds(self) -> float:
        """Return how long this cache has been live without a leader heartbeat; NaN while it is not live."""
        if self._disconnect_reason or self._replaying:
            return nan
        return self.clock() - max(self._followed_since, self._leader_heartbeat_at or 0.0)

    def why_no_leader(self, *, max_silence_seconds: float) -> str:
        """Return why no service may write now, "" if it may.

        Without a recent heartbeat there may be a new leader whose messages this cache does not have.
        """
        silence = self.seconds_since_leader_heartbeat()
        return "" if silence is not None and silence <= max_silence_seconds else _NO_LEADER

    @property
    def sequence(self) -> int:
        """The stream sequence up to which all messages have been applied; 0 before the first one."""
        return self._sequence

    def is_of_another_stream(self, message: Message) -> bool:
        """Whether the message was published for another stream than the followed one."""
        event = message.event
        return not isinstance(event, UnreadablePayload) and stream_id_of(event) != self._stream_id

    def has_received(self, message: Message) -> bool:
        """Whether this cache has received that message, or a later one of the followed stream.

        A consumer may be bound to a new stream while this cache still follows the former one. Then the cache
        returns False for messages of the new stream: a decision about them must wait. It also returns False
        for a foreign message that a later one has replaced: the stream does not deliver it again.
        """
        if not self.is_of_another_stream(message):
            return self._sequence >= message.sequence
        fenced = self.get_fenced(message.subject)
        if fenced is None:
            return False
        return fenced.sequence == message.sequence and fenced.published_at == message.published_at

    def why_outdated(self, message: Message) -> str:
        """Return why another message is the last one about its object; "" if this one is."""
        if self.is_of_another_stream(message):
            return "the message was published for a former stream"
        newest = self.get(message.subject)
        is_last = newest is None or newest.sequence <= message.sequence
        return "" if is_last else "a newer message about the object follows"

    def get(self, subject: str) -> Message | None:
        """Return the stored message of a subject, None without one."""
        return self._messages.get(subject)

    def get_fenced(self, subject: str) -> Message | None:
        """Return the last message of a subject if followers ignore it; None if it is valid or unreadable.

        It was published for another stream, or by a former leader after a message of a newer one.
        """
        message = self._invalid.get(subject)
        return None if message is None or isinstance(message.event, UnreadablePayload) else message

    def find_invalid_sequence(self, subject: str) -> int:
        """Return the sequence of the last message of a subject if that is unreadable or fenced, else 0."""
        message = self._invalid.get(subject)
        return message.sequence if message is not None else 0

    def list_unknown(self, prefix: str) -> list[str]:
        """Return the names under a prefix whose last message is unreadable or fenced: they may exist."""
        head = prefix + "."
        return [subject.removeprefix(head) for subject in self._invalid if subject.startswith(head)]

    def get_event(self, subject: str) -> Event | None:
        """Return the event of the stored message of a subject, None without one."""
        message = self.get(subject)
        return None if message is None or isinstance(message.event, UnreadablePayload) else message.event

    def share_event(self, subject: str, event: Event) -> None:
        """Store this event in place of an equal one of the subject, so that memory contains it once."""
        known = self._messages.get(subject)
        if known is not None and known.event == event:
            self._messages[subject] = replace(known, event=event)

    def forget(self, subject: str) -> None:
        """Remove the stored message of a subject."""
        self._messages.pop(subject, None)

    def list_under(self, prefix: str) -> list[Message]:
        """Return the stored messages of all subjects under a prefix, in no particular order."""
        head = prefix + "."
        return [message for subject, message in self._messages.items() if subject.startswith(head)]

    def subjects_under(self, prefix: str) -> set[str]:
        """Return the subjects under a prefix that have a message, valid or not."""
        head = prefix + "."
        return {
            subject for subject in self._messages.keys() | self._invalid.keys() if subject.startswith(head)
        }

    def __len__(self) -> int:
        """The number of stored messages."""
        return len(self._messages)

    # ---- bus.Follower

    def start_replay(self, position: StreamPosition) -> None:
        if position.stream_id != self._stream_id:
            self._messages.clear()
            self._epoch = 0
            self._leader_heartbeat_at = None
            self._sequence = 0
            self._stream_id = position.stream_id
            self.on_stream_replaced()
        if position.last_sequence < self._sequence:
            # A disk failure cut the end of the stream, perhaps with all messages of the newest leader.
            self._sequence = position.last_sequence
            self._epoch = 0
        self._replayed = set()
        self._invalid.clear()  # the replay delivers each of them again that is still the last one
        self._replaying = True
        self._snapshot = None
        self._disconnect_reason = ""

    def apply(self, message: Message) -> None:
        was_replayed = message.subject in self._replayed
        if self._replaying:
            self._replayed.add(message.subject)
        self._sequence = max(self._sequence, message.sequence)
        if isinstance(message.event, UnreadablePayload):
            self._invalid[message.subject] = replace(message, event=replace(message.event, payload=b""))
            self.on_unreadable()
            return  # its consumer publishes a dead letter; the cache contains only readable messages
        self._invalid.pop(message.subject, None)
        if self.is_of_another_stream(message):
            # Its publisher does not know yet that the stream was replaced.
            self._invalid[message.subject] = message
            return
        if is_from_former_leader(message.event, self._epoch):
            if self._replaying and not was_replayed and self._is_deletion_of_cached(message):
                self._replayed.discard(message.subject)
            kept = self._messages.get(message.subject)
            if kept is None or kept.sequence != message.sequence:  # otherwise a replay of a valid message
                self._invalid[message.subject] = message
            return  # the leader publishes the object again
        self._epoch = max(self._epoch, epoch_of(message.event))
        if isinstance(message.event, Leading) and not self._replaying:
            # A replayed heartbeat may be as old as its TTL. Another leader may have the Lease by now.
            self._leader_heartbeat_at = self.clock()
        if isinstance(message.event, SnapshotComplete) and not self._replaying:
            self._snapshot = message
        else:
            self._store(message)

    def mark_caught_up(self) -> None:
        if self._snapshot is not None:
            snapshot, self._snapshot = self._snapshot, None
            self._store(snapshot)

    def _store(self, message: Message) -> None:
        message = self.compact(message)
        if self.should_keep(message):
            self._messages[message.subject] = message
        else:
            self._messages.pop(message.subject, None)
        if isinstance(message.event, SnapshotComplete):
            self._drop_expired(message.published_at)
        self.on_message(message)

    def finish_replay(self) -> None:
        for subject in self._messages.keys() - self._replayed:
            self._drop(subject)  # expired while this follower was disconnected
        self._replayed = set()  # a cleared set would keep its table of all subjects
        self._replaying = False
        self._followed_since = self.clock()
        self.on_caught_up()

    def mark_disconnected(self, reason: str) -> None:
        self._disconnect_reason = reason or "connection lost"

    def _is_deletion_of_cached(self, fenced: Message) -> bool:
        """Return whether a fenced deletion has replaced the stored message of its subject in the stream.

        A stored message would show an object that a follower which starts now does not have.
        """
        kept = self._messages.get(fenced.subject)
        if kept is None or not isinstance(fenced.event, ObjectGone) or kept.sequence >= fenced.sequence:
            return False
        return not isinstance(kept.event, UnreadablePayload) and epoch_of(kept.event) <= epoch_of(
            fenced.event
        )

    def _drop_expired(self, now: datetime) -> None:
        """Drop expired deletions and invalid messages: names that never return accumulate."""
        for subject, message in list(self._invalid.items()):
            if has_expired(message.published_at, now):
                del self._invalid[subject]
        for subject, message in list(self._messages.items()):
            is_gone = isinstance(message.event, ObjectGone | EnrichedNodeGone | EnrichedCsrGone)
            if is_gone and has_expired(message.published_at, now):
                self._drop(subject)
                self._replayed.discard(subject)

    def _drop(self, subject: str) -> None:
        self.on_expired(self._messages.pop(subject))

    def _has_snapshot(self) -> bool:
        message = self._messages.get(SNAPSHOT)
        return message is not None and isinstance(message.event, SnapshotComplete)
