"""The interface of the message bus. Every implementation passes the same conformance suite."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import ClassVar, Protocol

import msgspec

from libs.common.bus.delivery import Disposition
from libs.common.contract.events import Event, EventError, decode
from libs.common.contract.services import Durable


class UnreadablePayload(msgspec.Struct, frozen=True, kw_only=True):
    """Takes the place of an event: bytes that are not an event of the schema, and the reason."""

    reason: str
    payload: bytes


def decode_payload(payload: bytes) -> Event | UnreadablePayload:
    """Return the event, or the reason why the bytes are none."""
    try:
        return decode(payload)
    except EventError as error:
        return UnreadablePayload(reason=str(error), payload=payload)


def event_name(event: Event | UnreadablePayload) -> str:
    """Return the name of the event for metric labels and log fields."""
    return "Unreadable" if isinstance(event, UnreadablePayload) else type(event).__name__


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the stream."""

    subject: str
    event: Event | UnreadablePayload
    sequence: int
    published_at: datetime
    headers: Mapping[str, str] = {}  # traceparent
    redelivered: bool = False


MessageHandler = Callable[[Message], Awaitable[Disposition]]


class StreamPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The stream ID and the last sequence at the moment at which a follower starts."""

    stream_id: str
    last_sequence: int


class ConsumerStats(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one durable consumer."""

    name: str
    pending: int  # messages that have not been delivered yet
    unacknowledged: int  # delivered and not acknowledged: a handler has them, or they wait for a retry
    redelivered: int  # the part of `unacknowledged` that was delivered more than once
    waiting: int  # open pull requests; 0 = no process consumes, or all are busy
    delivered: int = 0  # deliveries in its lifetime, with redeliveries: grows while a process consumes
    # All messages up to this sequence of the stream are acknowledged, or were replaced. The oldest message
    # that waits is the next one of its filter.
    acknowledged_sequence: int = 0


class FollowLag(msgspec.Struct, frozen=True, kw_only=True):
    """What the followers of one name have not received yet, by their last delivery."""

    messages: int = 0
    since: datetime | None = None  # none of them was published before; None: nothing waits, or it replays


def sum_lags(lags: Iterable[FollowLag]) -> FollowLag:
    """Return the lag of several followers together."""
    known = list(lags)
    times = [each.since for each in known if each.since is not None]
    return FollowLag(messages=sum(each.messages for each in known), since=min(times, default=None))


class StreamStats(msgspec.Struct, frozen=True, kw_only=True):
    """Message counts and sizes of the stream and its durable consumers at one moment, for operators."""

    messages: int
    bytes: int
    max_bytes: int  # the limit of the stream; less than 0 = without limit
    dead_letters: int  # dead letters in the stream
    first_sequence: int = 0  # of the oldest message; 0: unknown
    consumers: tuple[ConsumerStats, ...]  # the existing ones, sorted by name


class ServerLiveness(msgspec.Struct, frozen=True, kw_only=True):
    """How long the server has been silent, and how long it had answered without a gap before that."""

    silent_seconds: float  # since its last answer; infinite before the first one
    responsive_seconds: float


class BusError(Exception):
    """The bus is unreachable, too slow, or it rejected the request. The text names server and subject."""


class StreamFull(BusError):
    """The stream has no room for another subject (JetStream 10077): the bus is not ready until it has."""


class NoStream(BusError):
    """The stream does not exist: the watcher creates it, all other services wait."""


class WrongLastSequence(BusError):
    """Another publisher was faster on this subject (JetStream 10071, 10164): read its message first."""


class BusHooks(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks of a bus for metrics. They are synchronous and fast, and they never raise."""

    published: Callable[[str], None] = lambda subject: None
    publish_failed: Callable[[str, BusError], None] = lambda subject, error: None
    connected: Callable[[], None] = lambda: None
    disconnected: Callable[[str], None] = lambda reason: None
    permission_violation: Callable[[str], None] = lambda text: None


class Follower(Protocol):
    """Receives messages from `Bus.follow` in stream order. All methods are synchronous and must be fast."""

    def start_replay(self, position: StreamPosition) -> None:
        """Handle a new consumer, which replays the stream. Another stream ID voids all known messages."""

    def apply(self, message: Message) -> None:
        """Apply the next message."""

    def finish_replay(self) -> None:
        """Handle the end of the replay: the last message of each subject at its start has been applied."""

    def mark_caught_up(self) -> None:
        """Handle that nothing is pending after the replay: all messages published so far have been applied.

        Before, a message may be missing although a later one has been applied: another message of its
        subject has replaced it in the stream, and comes after that one.
        """

    def mark_disconnected(self, reason: str) -> None:
        """Handle the loss of the connection to the stream: all known messages may be stale."""


class Bus(Protocol):
    """Publishes, consumes and follows events. Every method ends by its own deadline or by cancellation."""

    system: ClassVar[str]  # the messaging system in traces (messaging.system)

    @property
    def stream_id(self) -> str:
        """The creation time of the stream when last read; "" while no stream is known."""

    async def publish(
        self,
        event: Event,
        *,
        expected_sequence: int | None = None,
        ttl_seconds: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publish to the subject of the event; return the stream sequence.

        `expected_sequence` is the last sequence of this subject that the caller knows: 0 for an empty
        subject, None for any sequence. Raises WrongLastSequence, StreamFull, NoStream or BusError.
        """

    async def get_last(self, subject: str) -> Message | None:
        """Return the last message of a subject, None if there is none. Raises NoStream or BusError."""

    async def provision(self, durables: tuple[Durable, ...], *, max_bytes: int) -> str:
        """Create or repair the stream and its durables; return the stream ID. Only the watcher calls it.

        A stream that is more than half full gets a larger limit than `max_bytes`. If the server has too
        little room, the limit is smaller, in whole steps. A stream that cannot grow keeps its limit.
        Raises BusError if the server has no room for the smallest stream.
        """

    def headroom(self, event: Event) -> AbstractAsyncContextManager[int]:
        """Return a context in which a full stream has room for this event. Only the watcher calls it.

        It yields the bytes of the headroom that the stream used before. Raises NoStream or BusError.
        """

    async def stats(self) -> StreamStats:
        """Return the current counts and sizes. The cost does not depend on the number of messages.

        Raises NoStream or BusError.
        """

    async def consume(self, durable: Durable, handle: MessageHandler, *, in_flight: int) -> None:
        """Pass the messages of the durable to `handle`, at most `in_flight` at once; apply the dispositions.

        In-progress acknowledgements extend the deadline of a slow handler. Only cancellation ends it. Then it
        fetches no more messages, waits a limited time for running handlers, and returns all other messages at
        once.
        """

    async def follow(
        self,
        name: str,
        filter_subject: str,
        follower: Follower,
        *,
        exclude: Callable[[str], bool] = lambda subject: False,
    ) -> None:
        """Pass the last message of each subject to `follower`, then live ones. Only cancellation ends it.

        It skips subjects for which `exclude` returns true, and does not decode their messages.
        """

    def lag(self, name: str) -> FollowLag:
        """Return what the followers of that name have not received yet."""

    def server_liveness(self) -> ServerLiveness:
        """Return when the server last answered with an acknowledgement, a rejection or the stream's state."""

    def problems(self) -> tuple[str, ...]:
        """Return why the bus is not usable now, in words for /readyz; empty if it is usable."""

    async def close(self) -> None:
        """Drain and disconnect, within a few seconds."""
