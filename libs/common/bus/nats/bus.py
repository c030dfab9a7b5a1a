"""The bus on NATS JetStream: one supervised connection, one stream."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from libs.common.bus.nats.connection_supervisor import ConnectionSupervisor, Timeouts
from libs.common.bus.nats.consume_loop import ConsumeLoop
from libs.common.bus.nats.current_stream import CurrentStream, LivenessTracker
from libs.common.bus.nats.follow_loop import FollowLoop
from libs.common.bus.nats.jetstream import StreamInfo, fetch_last, fetch_stats, fetch_stream_info, publish
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.nats.provision import headroom, provision
from libs.common.bus.protocol import (
    BusError,
    BusHooks,
    Follower,
    FollowLag,
    Message,
    MessageHandler,
    NoStream,
    ServerLiveness,
    StreamFull,
    StreamStats,
    WrongLastSequence,
    sum_lags,
)
from libs.common.bus.stream_limits import has_room_again, message_bytes
from libs.common.clocks import loop_time
from libs.common.contract.events import Event, encode
from libs.common.contract.services import Durable
from libs.common.contract.subjects import STREAM, subject_of

_OUTSTANDING: Final = 256  # unacknowledged publishes; further ones wait until their own deadline
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_TTL: Final = "Nats-TTL"


class NatsBus:
    """Implements `Bus`. It is usable if `problems()` is empty. `connect` creates it, `close` ends it."""

    system: ClassVar = "nats"

    def __init__(self, link: ConnectionSupervisor, stream_replicas: int) -> None:
        self._link = link
        self._stream_replicas = stream_replicas
        self._stream = CurrentStream()
        self._stream_problem = f"stream {STREAM} has not been read yet"
        self._answers = LivenessTracker(loop_time)
        self._poll_now = asyncio.Event()
        self._resizing = asyncio.Lock()
        self._outstanding = asyncio.Semaphore(_OUTSTANDING)
        self._loops: list[ConsumeLoop] = []
        self._follow_loops: list[FollowLoop] = []
        self._rejected_bytes = 0  # size of the publish that found the stream full; 0 while it is not full
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def connect(
        cls,
        servers: tuple[str, ...],
        *,
        service: str,
        nkey_seed_file: Path | None = None,
        tls_ca_file: Path | None = None,
        hooks: BusHooks | None = None,
        timing: Timeouts | None = None,
        stream_replicas: int = 0,
    ) -> Self:
        """Start the supervisor; return after its first attempt. An unreachable NATS is no error.

        `stream_replicas`: number of replicas of a provisioned stream; 0 = unchanged, one for a new stream.
        """
        access = NatsAccess(
            servers=servers, service=service, nkey_seed_file=nkey_seed_file, tls_ca_file=tls_ca_file
        )
        link = ConnectionSupervisor(access, timing=timing or Timeouts(), hooks=hooks or BusHooks())
        bus = cls(link, stream_replicas)
        bus._tasks = [asyncio.create_task(link.run()), asyncio.create_task(bus._poll_stream())]
        try:
            await link.wait_for_first_attempt()
        except asyncio.CancelledError:
            await bus.close()
            raise
        return bus

    @property
    def stream_id(self) -> str:
        """The creation time of the stream when last read; "" while no stream is known."""
        return self._stream.id

    async def publish(
        self,
        event: Event,
        *,
        expected_sequence: int | None = None,
        ttl_seconds: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publish to the subject of the event; return the stream sequence. See `Bus.publish`.

        A BusError may hide a success whose acknowledgement was lost. A retry with the expected sequence is
        safe: it is rejected, and `get_last` returns the event itself.
        """
        subject, payload = subject_of(event), encode(event)
        own = dict(headers or {})
        if expected_sequence is not None:
            own[_EXPECTED] = str(expected_sequence)
        if ttl_seconds is not None:
            own[_TTL] = f"{ttl_seconds}s"
        try:
            sequence = await self._publish(subject, payload, own)
        except BusError as error:
            self._link.hooks.publish_failed(subject, error)
            raise
        self._link.hooks.published(subject)
        return sequence

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> int:
        until = loop_time() + self._link.timing.publish_deadline
        await self._room_for_one_more(subject, until)
        try:
            connection = self._link.current or await self._link.wait_for_connection(until - loop_time())
            sequence = await publish(connection, subject, payload, headers, seconds=until - loop_time())
        except StreamFull:
            self._answers.record_response()
            self._rejected_bytes = len(subject) + len(payload)
            raise
        except WrongLastSequence:
            self._answers.record_response()
            raise
        except NoStream:
            # A clustered stream without a leader gives the same error: its description tells them apart.
            self._poll_now.set()
            raise
        finally:
            self._outstanding.release()
        self._answers.record_response()
        if not self._stream.id:
            self._poll_now.set()
        return sequence

    async def _room_for_one_more(self, subject: str, until: float) -> None:
        if not self._outstanding.locked():
            await self._outstanding.acquire()  # free now: a timeout around it would cost more than the call
            return
        try:
            async with asyncio.timeout_at(until):
                await self._outstanding.acquire()
        except TimeoutError as error:
            waiting = f"{_OUTSTANDING} publishes are waiting for an acknowledgement"
            raise BusError(f"{self._link.access}: {subject}: {waiting}") from error

    async def get_last(self, subject: str) -> Message | None:
        """Return the last message of a subject, None if there is none. Raises NoStream or BusError."""
        deadline = self._link.timing.publish_deadline
        connection = await self._link.wait_for_connection(deadline)
        return await fetch_last(connection, subject, seconds=deadline)

    async def provision(self, durables: tuple[Durable, ...], *, max_bytes: int) -> str:
        """Create or repair the stream and its durables; return the stream ID."""
        connection = await self._link.wait_for_connection(self._link.timing.publish_deadline)
        async with self._resizing:
            info = await provision(connection, durables, max_bytes, replicas=self._stream_replicas)
        self._record_stream_info(info)
        return info.created

    @contextlib.asynccontextmanager
    async def headroom(self, event: Event) -> AsyncIterator[int]:
        """Return a context in which a full stream has room for this event. See `Bus.headroom`."""
        needed = message_bytes(subject_of(event), encode(event))
        connection = await self._link.wait_for_connection(self._link.timing.publish_deadline)
        async with self._resizing, headroom(connection, needed) as used:
            yield used

    async def stats(self) -> StreamStats:
        """Return the current counts and sizes. Raises NoStream or BusError."""
        return await fetch_stats(await self._link.wait_for_connection(self._link.timing.publish_deadline))

    async def consume(self, durable: Durable, handle: MessageHandler, *, in_flight: int) -> None:
        """Pass each message of the durable to `handle` until cancelled. See `Bus.consume`."""
        loop = ConsumeLoop(
            self._link,
            durable,
            handle,
            in_flight=in_flight,
            bound=self._poll_now.set,
            stream=self._stream,
        )
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
        loop = FollowLoop(
            self._link,
            name,
            filter_subject,
            follower,
            exclude=exclude,
            on_stream_info=self._record_stream_info,
            stream=self._stream,
        )
        self._follow_loops.append(loop)
        try:
            await loop.run()
        finally:
            self._follow_loops.remove(loop)

    def lag(self, name: str) -> FollowLag:
        """Return what the followers of that name have not received yet. See `Bus.lag`."""
        return sum_lags(loop.lag() for loop in self._follow_loops if loop.name == name)

    def server_liveness(self) -> ServerLiveness:
        """Return when the server last answered."""
        return self._answers.server_liveness()

    def problems(self) -> tuple[str, ...]:
        """Return why the bus is not usable now, in words for /readyz; empty if it is usable."""
        unconnected = self._link.problems()
        ended = [f"a task of the bus has ended: {task}" for task in self._tasks if task.done()]
        full = f"stream {STREAM} is full: it rejected a publish of {self._rejected_bytes} bytes (10077)"
        return (
            *ended,
            *unconnected,
            *([self._stream_problem] if self._stream_problem and not unconnected else []),
            *([full] if self._rejected_bytes else []),
            *(loop.problem for loop in self._loops if loop.problem and not unconnected),
        )

    async def close(self) -> None:
        """Send queued messages and disconnect, within a few seconds. First cancel consumers and followers."""
        if connection := self._link.current:
            with contextlib.suppress(BusError):  # the server does not answer
                await connection.round_trip(self._link.timing.probe_deadline)
        self._link.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll_stream(self) -> None:
        """Read the stream ID for a bus that neither provisions nor follows."""
        while True:
            try:
                self._record_stream_info(await fetch_stream_info(await self._link.wait_for_connection()))
            except NoStream as error:
                self._lost_stream(error)
            except BusError as error:
                self._stream_problem = f"stream {STREAM} cannot be read: {error}"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._link.timing.probe_every):
                    await self._poll_now.wait()
            self._poll_now.clear()

    def _record_stream_info(self, info: StreamInfo) -> None:
        self._stream.record(info.created)
        self._answers.record_response()
        self._stream_problem = ""
        if has_room_again(info.max_bytes, info.state.bytes, self._rejected_bytes):
            self._rejected_bytes = 0

    def _lost_stream(self, error: NoStream) -> None:
        self._answers.record_response()
        self._stream.record_lost()
        self._stream_problem = f"stream {STREAM} does not exist, the watcher provisions it ({error})"
