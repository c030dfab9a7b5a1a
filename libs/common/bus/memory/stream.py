"""What JetStream does with our stream, as plain state: who publishes, what is kept, who still gets what."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from heapq import heappop, heappush
from typing import Final

import msgspec

from libs.common.bus.protocol import MAX_MESSAGE_AGE, StreamFull, WrongLastSequence

_MAX_AGE_SECONDS: Final = MAX_MESSAGE_AGE.total_seconds()
_OVERHEAD_BYTES: Final = 30  # per message: sequence, times, sizes


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message as the stream keeps it; bytes, so that each reader gets a value of its own."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    sequence: int
    published_at: datetime
    expires_at: float  # on the clock that `now` is read from
    size: int  # what it takes of the stream's max_bytes


class Stream:
    """One last message per subject, no older than an hour. `now` is a monotonic clock's, in seconds."""

    def __init__(self, created: str, *, max_bytes: int) -> None:
        self.created = created
        self.max_bytes = max_bytes
        self.bytes = 0
        self.last_sequence = 0
        self._messages: OrderedDict[str, StoredMessage] = OrderedDict()  # in stream order: oldest first
        self._short_lived: dict[str, float] = {}  # subjects whose message has a TTL, and when it ends
        self._backlogs: list[Backlog] = []

    def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        headers: Mapping[str, str],
        expected_sequence: int | None,
        ttl_seconds: float | None,
        now: float,
        at: datetime,
    ) -> int:
        """Keep it instead of the subject's last; its sequence. Raises WrongLastSequence or StreamFull."""
        self._expire(now)
        old = self._messages.get(subject)
        last = old.sequence if old else 0
        if expected_sequence is not None and expected_sequence != last:
            raise WrongLastSequence(f"{subject}: wrong last sequence: {last}")
        stored = StoredMessage(
            subject=subject,
            payload=payload,
            headers=headers,
            sequence=self.last_sequence + 1,
            published_at=at,
            expires_at=now + min(_MAX_AGE_SECONDS, _MAX_AGE_SECONDS if ttl_seconds is None else ttl_seconds),
            size=_OVERHEAD_BYTES + len(subject) + len(payload) + sum(map(len, (*headers, *headers.values()))),
        )
        # A full stream accepts a message that replaces one of its size or a larger one, as JetStream does on
        # one server (on a cluster it accepts none).
        if self.bytes + stored.size >= self.max_bytes and (old is None or stored.size > old.size):
            raise StreamFull(f"{subject}: maximum bytes exceeded")
        self._keep(stored, ttl_seconds)
        for backlog in self._backlogs:
            backlog.add(stored)
        return stored.sequence

    def get_last(self, subject: str, now: float) -> StoredMessage | None:
        """The last message of a subject, None if there is none."""
        self._expire(now)
        return self._messages.get(subject)

    def contains(self, stored: StoredMessage, now: float) -> bool:
        """Whether that message is there: neither replaced nor too old."""
        return self.get_last(stored.subject, now) is stored

    def open_backlog(self, filter_subject: str, *, on_new: Callable[[], None] = lambda: None) -> "Backlog":
        """For a new consumer: every subject's last message first. `close_backlog` it at the end."""
        backlog = Backlog(self, filter_subject, on_new)
        for stored in self._messages.values():
            backlog.add(stored)
        self._backlogs.append(backlog)
        return backlog

    def count(self, filter_subject: str, now: float) -> int:
        """How many messages of that filter it holds."""
        self._expire(now)
        return sum(subject_matches(filter_subject, subject) for subject in self._messages)

    @property
    def messages(self) -> int:
        """How many it holds."""
        return len(self._messages)

    def close_backlog(self, backlog: "Backlog") -> None:
        """Nobody takes from it any more."""
        self._backlogs.remove(backlog)

    def _keep(self, stored: StoredMessage, ttl_seconds: float | None) -> None:
        self._remove(stored.subject)
        self.last_sequence = stored.sequence
        self._messages[stored.subject] = stored
        self.bytes += stored.size
        if ttl_seconds is not None:
            self._short_lived[stored.subject] = stored.expires_at

    def _remove(self, subject: str) -> None:
        old = self._messages.pop(subject, None)
        self._short_lived.pop(subject, None)
        self.bytes -= old.size if old else 0

    def _expire(self, now: float) -> None:
        if self._short_lived:  # two at most: of who leads, and that seldom
            for subject in [each for each, expires in self._short_lived.items() if expires <= now]:
                self._remove(subject)
        while self._messages and (oldest := next(iter(self._messages.values()))).expires_at <= now:
            self._remove(oldest.subject)


class Backlog:
    """What one consumer has not taken yet: the last message of each of its subjects, in stream order."""

    def __init__(self, stream: Stream, filter_subject: str, on_new: Callable[[], None]) -> None:
        """`news` is told when something has come."""
        self._stream = stream
        self._filter = filter_subject
        self._news = on_new
        self._waiting: OrderedDict[str, StoredMessage] = OrderedDict()

    def add(self, stored: StoredMessage) -> None:
        """It comes last, and instead of an older one of its subject that nobody has taken."""
        if subject_matches(self._filter, stored.subject):
            self._waiting[stored.subject] = stored
            self._waiting.move_to_end(stored.subject)
            self._drop_what_aged_out(stored.expires_at - _MAX_AGE_SECONDS)
            self._news()

    def _drop_what_aged_out(self, now: float) -> None:
        """Names that never return must not pile up where nobody takes: some durables have no consumer."""
        while (oldest := next(iter(self._waiting.values()))).expires_at <= now:
            del self._waiting[oldest.subject]

    def take(self, now: float) -> StoredMessage | None:
        """The next one that the stream still holds."""
        while self._waiting:
            _, stored = self._waiting.popitem(last=False)
            if self._stream.contains(stored, now):
                return stored
        return None

    def pending(self, now: float) -> int:
        """How many it would still give."""
        return sum(self._stream.contains(stored, now) for stored in self._waiting.values())


class DurableState:
    """A durable: its backlog, and what is to be done again later.

    What has been taken comes back by `again` or never. JetStream's ack_wait guards against consumers that
    die; these die together with the stream.
    """

    def __init__(self, stream: Stream, filter_subject: str, *, on_new: Callable[[], None]) -> None:
        self.filter = filter_subject
        self._stream = stream
        self._news = on_new
        self._backlog = stream.open_backlog(filter_subject, on_new=on_new)
        self._again: list[tuple[float, int, StoredMessage]] = []
        self._unsettled: dict[int, tuple[StoredMessage, int]] = {}  # by sequence; how often each was given
        self.delivered = 0

    def take(self, now: float) -> tuple[StoredMessage, bool] | None:
        """The next piece of work and whether it was delivered before: what is due again comes first."""
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
        fresh = self._backlog.take(now)
        return None if fresh is None else (fresh, False)

    def acknowledge(self, stored: StoredMessage) -> None:
        """It was done."""
        self._unsettled.pop(stored.sequence, None)

    def delivery_counts(self, now: float) -> list[int]:
        """Of what was given and not done, and is not replaced since: how often each was given."""
        gone = [sequence for sequence, (s, _) in self._unsettled.items() if not self._stream.contains(s, now)]
        for sequence in gone:
            del self._unsettled[sequence]
        return [times for _, times in self._unsettled.values()]

    def pending(self, now: float) -> int:
        """How many nobody was given yet."""
        return self._backlog.pending(now)

    def requeue(self, stored: StoredMessage, due: float) -> None:
        """It was not done: to be delivered again then, unless it is replaced before."""
        heappush(self._again, (due, stored.sequence, stored))
        self._news()

    def next_due(self) -> float | None:
        """When something is to be done again, if nothing comes before."""
        return self._again[0][0] if self._again else None

    def close(self) -> None:
        """Another one takes its place."""
        self._stream.close_backlog(self._backlog)


def subject_matches(filter_subject: str, subject: str) -> bool:
    """Whether the filter, a subject or a prefix that ends in `.>`, names that subject."""
    if filter_subject.endswith(".>"):
        return subject.startswith(filter_subject[:-1]) and len(subject) >= len(filter_subject)
    return subject == filter_subject
