"""Reads from NATS what there is to see of the flow, with the reader's key. Publishes and consumes nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import msgspec
from cryptography import x509

from cli.inside.seen import (
    CertificateSeen,
    FlowSeen,
    Object,
    ObjectSeen,
    QueueSeen,
    StreamSeen,
    Unknown,
    Word,
    is_spoken_of,
)
from cli.inside.services import services_seen
from libs.common.bus import BusError, Durable, NoStream, UnreadablePayload
from libs.common.nats_bus.connection import Connection
from libs.common.nats_bus.jetstream import NoConsumer, call, fetch_last
from libs.common.nats_bus.nats_access import NatsAccess
from libs.common.service_spec import DURABLES, SERVICES
from libs.common.subjects import (
    DEAD_LETTERS,
    DECIDED,
    ENRICHED_CSR,
    ENRICHED_NODE,
    LEADING,
    NETWORKS,
    OBSERVED_CSR,
    OBSERVED_NODE,
    SNAPSHOT,
    STREAM,
)

_SECONDS: Final = 5.0  # for connecting, and for each answer
_LETTERS: Final = 50  # dead letters that are read; there may be one for every object
_PAUSES: Final = (0.1, 0.3)  # between looks at a queue from which nobody seems to take
_AT_ONCE: Final = 32  # questions
_OBSERVED: Final = {"node": OBSERVED_NODE, "csr": OBSERVED_CSR}
_ENRICHED: Final = {"node": ENRICHED_NODE, "csr": ENRICHED_CSR}


class _Config(msgspec.Struct, frozen=True):
    max_bytes: int = -1


class _State(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class _Stream(msgspec.Struct, frozen=True):
    config: _Config
    created: str
    state: _State


class _Sequence(msgspec.Struct, frozen=True):
    last_active: datetime | None = None


class _Consumer(msgspec.Struct, frozen=True):
    delivered: _Sequence = _Sequence()
    ack_floor: _Sequence = _Sequence()
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0


async def flow_seen(nats: NatsAccess, objects: Sequence[Object] = ()) -> FlowSeen:
    """What there is, and the last words about `objects`. Raises BusError."""
    async with _connected(nats) as connection:
        seen = await _Reader(connection).seen(objects)
        return msgspec.structs.replace(seen, certificates=tuple(_certificates(nats, connection)))


async def ask_nats(nats: NatsAccess, objects: tuple[Object, ...]) -> FlowSeen | Unknown:
    """The same, or why NATS does not tell."""
    try:
        return await flow_seen(nats, objects)
    except BusError as error:
        return Unknown(reason=f"NATS does not tell: {error}")


@asynccontextmanager
async def _connected(nats: NatsAccess) -> AsyncIterator[Connection]:
    """To the first server that lets us in."""
    problems = []
    for server in nats.servers:
        try:
            connection = await Connection.open(
                nats, server, seconds=_SECONDS, on_violation=lambda text: None
            )  # fmt: skip
        except BusError as error:
            problems.append(str(error))
            continue
        try:
            yield connection
        finally:
            await connection.abort("all has been read")
        return
    raise BusError("; ".join(problems) or "no server is named")


class _Reader:
    """Asks one server, some questions at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def seen(self, objects: Sequence[Object]) -> FlowSeen:
        try:
            stream = await self._stream()
        except NoStream:
            return FlowSeen(at=_now())
        letters = stream.state.subjects or {}
        queues, leading, snapshot, networks, dead, found = await asyncio.gather(
            asyncio.gather(*map(self._queue, DURABLES)),
            self._last(LEADING),
            self._last(SNAPSHOT),
            self._last(NETWORKS),
            self._words(sorted(letters)[:_LETTERS]),
            asyncio.gather(*map(self._object, objects)),
        )
        at = _now()
        return FlowSeen(
            at=at,
            stream=_stream_seen(stream),
            queues=tuple(queues),
            leading=leading,
            snapshot=snapshot,
            networks=networks,
            dead=tuple(sorted(dead, key=lambda word: word.published_at, reverse=True)),
            dead_count=sum(letters.values()),
            services=services_seen(tuple(queues), leading, at),
            objects=tuple(found),
        )

    async def _stream(self) -> _Stream:
        """With the subjects of dead letters; of more than 100,000 the server names no more."""
        return await call(
            self._connection, f"STREAM.INFO.{STREAM}", {"subjects_filter": f"{DEAD_LETTERS}.>"}, _Stream
        )  # fmt: skip

    async def _queue(self, durable: Durable) -> QueueSeen:
        try:
            info = await self._consumer(durable.name)
        except (NoConsumer, NoStream):
            return QueueSeen(name=durable.name, service=durable.service, exists=False)
        return QueueSeen(
            name=durable.name,
            service=durable.service,
            pending=info.num_pending,
            unacknowledged=info.num_ack_pending,
            redelivered=info.num_redelivered,
            waiting=info.num_waiting,
            delivered_at=info.delivered.last_active,
            acknowledged_at=info.ack_floor.last_active,
        )

    async def _consumer(self, name: str) -> _Consumer:
        """Between two of its requests a consumer that is there has none: that nobody is, some looks tell."""
        for pause in (*_PAUSES, None):
            info = await call(self._connection, f"CONSUMER.INFO.{STREAM}.{name}", None, _Consumer)
            if pause is None or info.num_waiting or info.num_ack_pending:
                break
            await asyncio.sleep(pause)
        return info

    async def _object(self, about: Object) -> ObjectSeen:
        if not is_spoken_of(about):
            return ObjectSeen(object=about)
        kind, name = about.kind, about.name
        observed, enriched, decided, dead = await asyncio.gather(
            self._last(f"{_OBSERVED[kind]}.{name}"),
            self._last(f"{_ENRICHED[kind]}.{name}"),
            self._words([f"{DECIDED}.{each.service}.{kind}.{name}" for each in SERVICES]),
            self._words([f"{DEAD_LETTERS}.{each.service}.{kind}.{name}" for each in SERVICES]),
        )
        return ObjectSeen(object=about, observed=observed, enriched=enriched, decided=decided, dead=dead)

    async def _words(self, subjects: Sequence[str]) -> tuple[Word, ...]:
        found = await asyncio.gather(*map(self._last, subjects))
        return tuple(word for word in found if word is not None)

    async def _last(self, subject: str) -> Word | None:
        async with self._room:
            try:
                message = await fetch_last(self._connection, subject, seconds=_SECONDS)
            except NoStream:  # gone since we looked
                return None
        if message is None:
            return None
        if isinstance(message.event, UnreadablePayload):
            return Word(
                subject=subject, published_at=message.published_at, unreadable=message.event.reason
            )  # fmt: skip
        return Word(subject=subject, published_at=message.published_at, event=message.event)


def _certificates(nats: NatsAccess, connection: Connection) -> Iterator[CertificateSeen]:
    """Of the server that we speak to, and what we trust it by."""
    if (until := connection.server_certificate_not_after) is not None:
        yield CertificateSeen(name="nats-server", expires_at=until)
    if nats.tls_ca_file is not None:
        for authority in x509.load_pem_x509_certificates(nats.tls_ca_file.read_bytes()):
            yield CertificateSeen(name="nats-authority", expires_at=authority.not_valid_after_utc)


def _stream_seen(stream: _Stream) -> StreamSeen:
    state = stream.state
    return StreamSeen(
        incarnation=stream.created,
        messages=state.messages,
        bytes=state.bytes,
        max_bytes=max(0, stream.config.max_bytes),
        last_sequence=state.last_seq,
    )


def _now() -> datetime:
    return datetime.now(UTC)
