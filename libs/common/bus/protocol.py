"""What services need of a message bus; every implementation passes one conformance suite."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import ClassVar, Protocol

import msgspec

from libs.common.bus.delivery import Disposition
from libs.common.contract.events import Event


class UnreadablePayload(msgspec.Struct, frozen=True, kw_only=True):
    """Stands where an event should be: bytes that nobody could read, and why."""

    reason: str
    payload: bytes


def event_name(event: Event | UnreadablePayload) -> str:
    """The kind of event in metric labels and log fields."""
    return "Unreadable" if isinstance(event, UnreadablePayload) else type(event).__name__


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message as the stream holds it."""

    subject: str
    event: Event | UnreadablePayload
    sequence: int
    published_at: datetime
    headers: Mapping[str, str] = {}  # traceparent
    redelivered: bool = False


class Durable(msgspec.Struct, frozen=True, kw_only=True):
    """A shared, acknowledged consumer: whose it is, its name and the one filter it has."""

    service: str  # in whose name its dead letters are written, whatever process consumes it
    name: str
    filter: str
    ack_wait_seconds: float = 30.0


class StreamPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Someone follows from here on: the stream's incarnation, and its last sequence when they began."""

    stream_id: str
    last_sequence: int


class ConsumerStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a durable stands: what nobody was given yet, what is not settled, who waits for more."""

    name: str
    pending: int  # messages that nobody was given yet
    unacknowledged: int  # given and not settled: in hand, or parked for another try
    redelivered: int  # of these, given more than once
    waiting: int  # requests of consumers for more; 0 = nobody consumes, or each has its hands full
    delivered: int = 0  # deliveries in its life, repeated ones too: while it grows, somebody consumes


class StreamStats(msgspec.Struct, frozen=True, kw_only=True):
    """The stream and its durables at one moment, as far as somebody must know who operates them."""

    messages: int
    bytes: int
    max_bytes: int  # as it was provisioned; less than 0 = without limit
    dead_letters: int  # dead letters that lie in it
    consumers: tuple[ConsumerStats, ...]  # those that exist, by name


class ServerLiveness(msgspec.Struct, frozen=True, kw_only=True):
    """How long ago the stream's server last answered, and for how long until then without a gap."""

    silent_seconds: float  # infinite before the first answer
    responsive_seconds: float


class BusError(Exception):
    """The bus did not do it: unreachable, refused, or too slow. The text names server and subject."""


class StreamFull(BusError):
    """The stream has no room for another subject (JetStream 10077): not ready until it has."""


class NoStream(BusError):
    """The stream does not exist (any more): the watcher provisions it, everyone else waits."""


class WrongLastSequence(BusError):
    """Somebody else has published to this subject since (JetStream 10071, 10164): read it, then decide."""


class BusHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What a bus tells its observer; synchronous, quick, and never raising."""

    published: Callable[[str], None] = lambda subject: None
    publish_failed: Callable[[str, BusError], None] = lambda subject, error: None
    connected: Callable[[], None] = lambda: None
    disconnected: Callable[[str], None] = lambda reason: None
    permission_violation: Callable[[str], None] = lambda text: None


class Follower(Protocol):
    """What `follow` feeds, in stream order; all calls are synchronous and must be quick."""

    def start_replay(self, position: StreamPosition) -> None:
        """A consumer has been made anew. Another incarnation than before: everything known is void."""

    def apply(self, message: Message) -> None:
        """The next message."""

    def finish_replay(self) -> None:
        """Every subject's last message as of `begin` has been applied."""

    def mark_disconnected(self, reason: str) -> None:
        """The connection to the stream is gone for now; what is known is stale from here on."""


class Bus(Protocol):
    """Publish, share work, follow. Every method ends by its own deadline or by cancellation."""

    system: ClassVar[str]  # what carries the messages, as traces call it (messaging.system)

    @property
    def stream_id(self) -> str:
        """The stream's creation time as last seen; "" while no stream is known."""

    async def publish(
        self,
        event: Event,
        *,
        expected_sequence: int | None = None,
        ttl_seconds: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publish to the event's own subject; return the stream sequence.

        `expected_sequence` is the last sequence that the caller knows of this subject, 0 for none, None for
        "whatever it is". Raises WrongLastSequence, StreamFull, NoStream or BusError.
        """

    async def get_last(self, subject: str) -> Message | None:
        """The last message of a subject, None if there is none. Raises NoStream or BusError."""

    async def provision(self, durables: tuple[Durable, ...], *, max_bytes: int) -> str:
        """Make or repair the stream and its durables; return the incarnation. Only the watcher calls it.

        A stream that is more than half full gets a larger limit than `max_bytes`. A server that has too
        little room gives a smaller one, in whole steps. A stream that cannot grow at all keeps its limit.
        Raises BusError if the server has no room for the smallest stream.
        """

    def headroom(self, event: Event) -> AbstractAsyncContextManager[int]:
        """While it is open, a full stream has room for this event. Only the watcher calls it.

        Yields how many bytes of the headroom the stream used before. Raises NoStream or BusError.
        """

    async def stats(self) -> StreamStats:
        """How the stream and its durables stand now; costs the same however much they hold.

        Raises NoStream or BusError.
        """

    async def consume(
        self, durable: Durable, handle: Callable[[Message], Awaitable[Disposition]], *, in_flight: int
    ) -> None:
        """Hand the durable's messages to `handle`, at most `in_flight` at once, and carry out its verdicts.

        Long handling is kept alive with in-progress marks. Ends only by cancellation: then nothing new is
        fetched, handlers in flight are finished (bounded), the rest is handed back at once.
        """

    async def follow(
        self,
        name: str,
        filter_subject: str,
        follower: Follower,
        *,
        exclude: Callable[[str], bool] = lambda subject: False,
    ) -> None:
        """Feed `follower` the last message of each subject, then live ones. Ends only by cancellation.

        It is told nothing of subjects that `but_not` names; their messages are not even decoded.
        """

    def server_liveness(self) -> ServerLiveness:
        """Whether the stream's server answers: by an acknowledgement, a refusal, or a state of the stream."""

    def problems(self) -> tuple[str, ...]:
        """Why the bus is not usable right now, in words for /readyz; empty when it is."""

    async def close(self) -> None:
        """Drain and disconnect, within a few seconds."""
