"""The bus inside one process, for the all-in-one: the stream lives as long as the process."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar, Final

from msgspec.structs import replace

from libs.common.bus.memory.consume_loop import ConsumeLoop
from libs.common.bus.memory.stream import Backlog, DurableState, Stream
from libs.common.bus.protocol import (
    BusError,
    BusHooks,
    ConsumerStats,
    Follower,
    FollowLag,
    Message,
    MessageHandler,
    NoStream,
    ServerLiveness,
    StreamPosition,
    StreamStats,
    UnreadablePayload,
    decode_payload,
    sum_lags,
)
from libs.common.clocks import loop_time, utc_now
from libs.common.contract.events import Event, encode
from libs.common.contract.services import Durable
from libs.common.contract.subjects import DEAD_LETTERS, STREAM, subject_of

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_AT_ONCE: Final = 64  # messages that a follower receives before other tasks run
_NO_LIMIT: Final = -1  # all that the stream has is in the memory of its publishers, too


class MemoryServer:
    """The stream and durables that buses share; there is no stream until one provisions it."""

    def __init__(self, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.clock = clock
        self.stream: Stream | None = None
        self.is_provisioned = asyncio.Event()  # set when the stream exists
        self.durables: defaultdict[str, DurableState] = defaultdict(DurableState)  # by name

    def provision(self, durables: tuple[Durable, ...]) -> Stream:
        """Create or repair stream and durables."""
        if self.stream is None:
            self.stream = Stream(self.clock().isoformat())
        for durable in durables:
            self.durables[durable.name].provision(self.stream, durable.filter)
        self.is_provisioned.set()
        return self.stream

    def consumer_stats(self) -> tuple[ConsumerStats, ...]:
        """Return the counts of each durable."""
        provisioned = ((name, each) for name, each in sorted(self.durables.items()) if each.is_provisioned)
        return tuple(each.stats(name, loop_time()) for name, each in provisioned)


@dataclass(eq=False)
class _Following:
    """One `follow` call."""

    name: str
    backlog: Backlog
    is_replaying: bool = True

    def lag(self) -> FollowLag:
        lag = self.backlog.lag(loop_time())
        return replace(lag, since=None) if self.is_replaying else lag


class MemoryBus:
    """Implements `Bus`. Several buses on one server share its stream and durables; there is no connection."""

    system: ClassVar = "memory"

    def __init__(self, server: MemoryServer, *, hooks: BusHooks | None = None) -> None:
        self._server = server
        self._hooks = hooks or BusHooks()
        self._loops: list[ConsumeLoop] = []
        self._followed: list[_Following] = []
        self._closed = False

    @property
    def stream_id(self) -> str:
        """The creation time of the stream; "" while there is none."""
        return self._server.stream.created if self._server.stream else ""

    async def publish(
        self,
        event: Event,
        *,
        expected_sequence: int | None = None,
        ttl_seconds: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publish to the subject of the event; return the stream sequence. See `Bus.publish`."""
        subject, payload = subject_of(event), encode(event)
        try:
            sequence = self._stream(subject).publish(
                subject,
                _readable(event, payload),
                payload_bytes=len(payload),
                headers=MappingProxyType(dict(headers)) if headers else _NO_HEADERS,  # readers share it
                expected_sequence=expected_sequence,
                ttl_seconds=ttl_seconds,
                now=loop_time(),
                at=self._server.clock(),
            )
        except BusError as error:
            self._hooks.publish_failed(subject, error)
            raise
        finally:
            await asyncio.sleep(0)  # as with a network, other tasks run: some publish thousands in a row
        self._hooks.published(subject)
        return sequence

    async def get_last(self, subject: str) -> Message | None:
        """Return the last message of a subject, None if there is none. Raises NoStream or BusError."""
        stored = self._stream(subject).get_last(subject, loop_time())
        return stored.message if stored else None

    async def provision(self, durables: tuple[Durable, ...], *, max_bytes: int) -> str:
        """Create or repair the stream and its durables; return the stream ID. The stream has no limit."""
        self._require_open()
        return self._server.provision(durables).created

    @contextlib.asynccontextmanager
    async def headroom(self, event: Event) -> AsyncIterator[int]:
        """Return an empty context: a stream without a limit is never full."""
        yield 0

    async def stats(self) -> StreamStats:
        """Return the current counts and sizes. Raises NoStream or BusError."""
        stream = self._stream("look")
        dead = stream.count(f"{DEAD_LETTERS}.>", loop_time())
        return StreamStats(
            messages=stream.messages,
            bytes=stream.bytes,
            max_bytes=_NO_LIMIT,
            dead_letters=dead,
            consumers=self._server.consumer_stats(),
        )

    async def consume(self, durable: Durable, handle: MessageHandler, *, in_flight: int) -> None:
        """Pass each message of the durable to `handle` until cancelled. See `Bus.consume`."""
        state = self._server.durables[durable.name]
        loop = ConsumeLoop(durable.name, state, handle, in_flight=in_flight)
        self._loops.append(loop)
        try:
            await loop.run()
        finally:
            self._loops.remove(loop)

    async def follow(
        self,
        name: str,
        filter_subject: str,
        follower: Follower,
        *,
        exclude: Callable[[str], bool] = lambda subject: False,
    ) -> None:
        """Pass messages to `follower` until cancelled. See `Bus.follow`."""
        if self._server.stream is None:
            follower.mark_disconnected(_missing())
            await self._server.is_provisioned.wait()
        stream = self._server.stream
        assert stream is not None
        woken = asyncio.Event()
        backlog = stream.open_backlog(filter_subject, on_new=woken.set)
        following = _Following(name, backlog)
        self._followed.append(following)
        try:
            follower.start_replay(
                StreamPosition(stream_id=stream.created, last_sequence=stream.last_sequence)
            )
            await _feed(follower, backlog, exclude)
            follower.finish_replay()
            following.is_replaying = False
            while True:
                woken.clear()
                await _feed(follower, backlog, exclude)
                follower.mark_caught_up()
                await woken.wait()
        finally:
            self._followed.remove(following)
            stream.close_backlog(backlog)

    def lag(self, name: str) -> FollowLag:
        """Return what the followers of that name have not received yet. See `Bus.lag`."""
        return sum_lags(each.lag() for each in self._followed if each.name == name)

    def server_liveness(self) -> ServerLiveness:
        """Return that the server answers: it is in this process."""
        return ServerLiveness(silent_seconds=0.0, responsive_seconds=0.0)

    def problems(self) -> tuple[str, ...]:
        """Return why the bus is not usable now, in words for /readyz; empty if it is usable."""
        return (
            *(["the bus is closed"] if self._closed else []),
            *([_missing()] if self._server.stream is None else []),
            *(loop.problem for loop in self._loops if loop.problem),
        )

    async def close(self) -> None:
        """Reject further publishes. First cancel consumers and followers."""
        self._closed = True

    def _stream(self, subject: str) -> Stream:
        self._require_open()
        if self._server.stream is None:
            raise NoStream(f"{subject}: no stream {STREAM} accepts it")
        return self._server.stream

    def _require_open(self) -> None:
        if self._closed:
            raise BusError("the bus is closed")


def _readable(event: Event, payload: bytes) -> Event | UnreadablePayload:
    """Return what readers receive: the event that the payload decodes to, as on NATS.

    If the two are equal, readers share the publisher's event: the process then has a Node in memory once.
    """
    decoded = decode_payload(payload)
    return event if decoded == event else decoded


async def _feed(follower: Follower, backlog: Backlog, exclude: Callable[[str], bool]) -> None:
    """Pass all pending messages to the follower."""
    while True:
        now = loop_time()
        for _ in range(_AT_ONCE):
            if (stored := backlog.take(now)) is None:
                return
            if not exclude(stored.subject):
                follower.apply(stored.message)
        await asyncio.sleep(0)


def _missing() -> str:
    return f"stream {STREAM} does not exist, the watcher provisions it"
