"""A stream in memory as plain state, with the semantics of JetStream: messages, durables, backlogs."""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from heapq import heappop, heappush
from math import inf
from typing import Final

import msgspec

from libs.common.bus.protocol import (
    ConsumerStats,
    FollowLag,
    Message,
    UnreadablePayload,
    WrongLastSequence,
)
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract.events import Event

_MAX_AGE_SECONDS: Final = MAX_MESSAGE_AGE.total_seconds()
_OVERHEAD_BYTES: Final = 30  # per message: sequence and times


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One stored message, which all readers share: events are read-only."""

    message: Message
    expires_at: float  # on the clock of `now`
    size: int  # of subject, payload and headers

    @property
    def subject(self) -> str:
        return self.message.subject

    @property
    def sequence(self) -> int:
        return self.message.sequence


class Stream:
    """Stores the last message per subject for MAX_MESSAGE_AGE. `now` is monotonic, in seconds."""

    def __init__(self, created: str) -> None:
        self.created = created
        self.bytes = 0
        self.last_sequence = 0
        self._messages: OrderedDict[str, StoredMessage] = OrderedDict()  # in stream order, oldest first
        self._short_lived: dict[str, float] = {}  # subject -> expiry, for messages with a TTL
        self._next_expiry = inf  # nothing expires before; a replaced message may have been the next one
        self._backlogs: list[Backlog] = []

    def publish(
        self,
        subject: str,
        event: Event | UnreadablePayload,
        *,
        payload_bytes: int,
        headers: Mapping[str, str],
        expected_sequence: int | None,
        ttl_seconds: float | None,
        now: float,
        at: datetime,
    ) -> int:
        """Replace the subject's last message; return the sequence. Raises WrongLastSequence."""
        self.expire(now)
        old = self._messages.get(subject)
        last = old.sequence if old else 0
        if expected_sequence is not None and expected_sequence != last:
            raise WrongLastSequence(f"{subject}: wrong last sequence: {last}")
        stored = StoredMessage(
            message=Message(
                subject=subject,
                event=event,
                sequence=self.last_sequence + 1,
                published_at=at,
                headers=headers,
            ),
            expires_at=now + min(_MAX_AGE_SECONDS, _MAX_AGE_SECONDS if ttl_seconds is None else ttl_seconds),
            size=_OVERHEAD_BYTES
            + len(subject)
            + payload_bytes
            + sum(map(len, (*headers, *headers.values()))),
        )
        self._keep(stored, ttl_seconds)
        for backlog in self._backlogs:
            if backlog.accepts(subject):
                backlog.add(subject, stored)
        return stored.sequence

    def get_last(self, subject: str, now: float) -> StoredMessage | None:
        """Return the last message of a subject, None if there is none."""
        self.expire(now)
        return self._messages.get(subject)

    def contains(self, stored: StoredMessage, now: float) -> bool:
        """Return whether that message is stored: neither replaced nor expired."""
        return self.get_last(stored.subject, now) is stored

    def open_backlog(self, filter_subject: str, *, on_new: Callable[[], None] = lambda: None) -> "Backlog":
        """Return a new consumer's backlog, with each subject's last message. End it by `close_backlog`."""
        backlog = Backlog(self, filter_subject, on_new)
        for subject, stored in self._messages.items():
            if backlog.accepts(subject):
                backlog.add(subject, stored)
        self._backlogs.append(backlog)
        return backlog

    def count(self, filter_subject: str, now: float) -> int:
        """Return the number of messages that match the filter."""
        self.expire(now)
        return sum(map(subject_matcher(filter_subject), self._messages))

    @property
    def messages(self) -> int:
        """The number of messages."""
        return len(self._messages)

    def close_backlog(self, backlog: "Backlog") -> None:
        """Stop adding messages to the backlog."""
        self._backlogs.remove(backlog)

    def _keep(self, stored: StoredMessage, ttl_seconds: float | None) -> None:
        self._remove(stored.subject)
        self.last_sequence = stored.sequence
        self._messages[stored.subject] = stored
        self.bytes += stored.size
        self._next_expiry = min(self._next_expiry, stored.expires_at)
        if ttl_seconds is not None:
            self._short_lived[stored.subject] = stored.expires_at

    def _remove(self, subject: str) -> None:
        old = self._messages.pop(subject, None)
        self._short_lived.pop(subject, None)
        self.bytes -= old.size if old else 0

    def _drop(self, subject: str) -> None:
        self._remove(subject)
        for backlog in self._backlogs:
            backlog.discard(subject)

    def expire(self, now: float) -> None:
        """Drop the messages whose time is over, also from all backlogs."""
        if now < self._next_expiry:  # nearly always, and asked for each message of each reader
            return
        if self._short_lived:  # few: only heartbeats, pulses and snapshots have a TTL
            for subject in [each for each, expires in self._short_lived.items() if expires <= now]:
                self._drop(subject)
        while self._messages and (oldest := next(iter(self._messages.values()))).expires_at <= now:
            self._drop(oldest.subject)
        oldest_expiry = next((each.expires_at for each in self._messages.values()), inf)
        self._next_expiry = min(oldest_expiry, *self._short_lived.values(), inf)


class Backlog:
    """The messages that one consumer has not taken yet: each subject's last one, in stream order.

    The stream adds and discards, so that a backlog contains only messages that the stream still stores.
    """

    def __init__(self, stream: Stream, filter_subject: str, on_new: Callable[[], None]) -> None:
        """`accepts` is whether the filter matches a subject. `on_new` is called after each new message."""
        self._stream = stream
        self.accepts = subject_matcher(filter_subject)
        self._on_new = on_new
        self._waiting: OrderedDict[str, StoredMessage] = OrderedDict()

    def add(self, subject: str, stored: StoredMessage) -> None:
        """Append a message with an accepted subject; it replaces an older one of its subject."""
        self._waiting[subject] = stored
        self._waiting.move_to_end(subject)
        self._on_new()

    def discard(self, subject: str) -> None:
        """Remove the message of a subject, if it waits."""
        self._waiting.pop(subject, None)

    def take(self, now: float) -> StoredMessage | None:
        """Return the next message, None if there is none."""
        self._stream.expire(now)
        return self._waiting.popitem(last=False)[1] if self._waiting else None

    def pending(self, now: float) -> int:
        """Return the number of messages that `take` would still return."""
        self._stream.expire(now)
        return len(self._waiting)

    def lag(self, now: float) -> FollowLag:
        """Return how many messages wait, and the publication of the first."""
        messages = self.pending(now)
        first = next(iter(self._waiting.values()), None)
        return FollowLag(messages=messages, since=first.message.published_at if first is not None else None)

    def first_sequence(self) -> int | None:
        """Return the sequence of the first message that waits, None without one."""
        return next((stored.sequence for stored in self._waiting.values()), None)


class DurableState:
    """A durable: its backlog, the messages that wait for a redelivery, and the consume calls to wake.

    A consume call may come before the durable is provisioned. A taken message returns only by `requeue`:
    JetStream's ack_wait protects against consumers that die, and here consumers and stream die together.
    """

    def __init__(self) -> None:
        self.listeners: set[Callable[[], None]] = set()  # called when there may be work
        self.delivered = 0
        self._backlog: Backlog | None = None
        self._again: list[tuple[float, int, StoredMessage]] = []
        self._unsettled: dict[int, tuple[StoredMessage, int]] = {}  # sequence -> deliveries

    @property
    def is_provisioned(self) -> bool:
        """Whether the durable has a filter, and so a backlog."""
        return self._backlog is not None

    def provision(self, stream: Stream, filter_subject: str) -> None:
        """Let it deliver each subject's last message under that filter, which is the same in each call."""
        if self._backlog is None:
            self._stream = stream
            self._backlog = stream.open_backlog(filter_subject, on_new=self._wake)
            self._wake()

    def take(self, now: float) -> tuple[StoredMessage, bool] | None:
        """Return the next message and whether it is a redelivery; due redeliveries come first."""
        taken = self._next(now)
        if taken is not None:
            stored, _ = taken
            _, times = self._unsettled.get(stored.sequence, (stored, 0))
            self._unsettled[stored.sequence] = (stored, times + 1)
            self.delivered += 1
        return taken

    def _next(self, now: float) -> tuple[StoredMessage, bool] | None:
        while self._again and self._again[0][0] <= now:
            stored = heappop(self._again)[-1]
            if self._stream.contains(stored, now):
                return stored, True
            self._unsettled.pop(stored.sequence, None)
        fresh = self._backlog.take(now) if self._backlog else None
        return None if fresh is None else (fresh, False)

    def acknowledge(self, stored: StoredMessage) -> None:
        """Mark the message as handled."""
        self._unsettled.pop(stored.sequence, None)

    def requeue(self, stored: StoredMessage, due: float) -> None:
        """Deliver the message again at `due`, unless it is replaced before."""
        heappush(self._again, (due, stored.sequence, stored))
        self._wake()

    def next_due(self) -> float | None:
        """Return when the next redelivery is due, None if there is none."""
        return self._again[0][0] if self._again else None

    def stats(self, name: str, now: float) -> ConsumerStats:
        """Return its counts, without messages that were replaced meanwhile."""
        gone = [sequence for sequence, (s, _) in self._unsettled.items() if not self._stream.contains(s, now)]
        for sequence in gone:
            del self._unsettled[sequence]
        return ConsumerStats(
            name=name,
            pending=self._backlog.pending(now) if self._backlog else 0,
            unacknowledged=len(self._unsettled),
            redelivered=sum(times > 1 for _, times in self._unsettled.values()),
            waiting=len(self.listeners),
            delivered=self.delivered,
            acknowledged_sequence=self._find_acknowledged_sequence(),
        )

    def _find_acknowledged_sequence(self) -> int:
        first = self._backlog.first_sequence() if self._backlog else None
        waiting = [*self._unsettled, *([first] if first is not None else [])]
        return min(waiting) - 1 if waiting else self._stream.last_sequence

    def _wake(self) -> None:
        for listener in self.listeners:
            listener()


def subject_matcher(filter_subject: str) -> Callable[[str], bool]:
    """Return whether a subject matches the filter: `*` is one token, a last `>` at least one, as NATS."""
    if "*" in filter_subject:
        pattern = re.escape(filter_subject).replace(r"\*", r"[^.]+")
        pattern = pattern.removesuffix(">") + ".+" if pattern.endswith(".>") else pattern
        return lambda subject: re.fullmatch(pattern, subject) is not None
    if not filter_subject.endswith(".>"):
        return filter_subject.__eq__
    prefix = filter_subject.removesuffix(">")
    return lambda subject: subject.startswith(prefix) and subject != prefix
