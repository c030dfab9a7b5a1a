"""Reads the flow from NATS with the reader's key; publishes and consumes nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import msgspec
from cryptography import x509

from cli.inside.flow_snapshot import (
    NATS_SILENT,
    CertificateSnapshot,
    ConsumerSnapshot,
    FlowObject,
    FlowSnapshot,
    FlowUnavailable,
    LastMessage,
    ObjectMessages,
    StreamSnapshot,
)
from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.jetstream import (
    ConsumerInfo,
    DeliveryPosition,
    NoConsumer,
    StreamInfo,
    StreamState,
    call,
    fetch_last,
)
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.protocol import BusError, NoStream, UnreadablePayload
from libs.common.clocks import utc_now
from libs.common.contract.events import KubeServiceObserved
from libs.common.contract.services import DURABLES, SERVICES, Durable
from libs.common.contract.subjects import (
    ACCOUNT_REPORTS,
    CLOUD_REPORTS,
    DEAD_LETTERS,
    DECIDED,
    ENRICHED_CSR,
    ENRICHED_NODE,
    LEADING,
    NETWORKS,
    OBSERVED_CSR,
    OBSERVED_NODE,
    OBSERVED_SERVICE,
    STREAM,
    is_publishable_name,
)

_SECONDS: Final = 5.0  # for the connection, and for each response
_MAX_DEAD_LETTERS: Final = 50  # limit for dead letters that are read; there can be one per object
_MAX_SERVICES: Final = 1000  # limit for Kubernetes Services that are read
_RETRY_DELAYS: Final = (0.1, 0.3, 1.0)  # between queries of a consumer without waiting pulls
_MAX_CONCURRENT: Final = 32  # requests
_PREFIXES: Final = {"node": (OBSERVED_NODE, ENRICHED_NODE), "csr": (OBSERVED_CSR, ENRICHED_CSR)}


class _State(StreamState, frozen=True):
    subjects: dict[str, int] | None = None


class _Stream(StreamInfo, frozen=True):
    state: _State


class _Position(DeliveryPosition, frozen=True):
    last_active: datetime | None = None


class _Consumer(ConsumerInfo, frozen=True):
    delivered: _Position = _Position()
    ack_floor: _Position = _Position()


async def query_nats(nats: NatsAccess, objects: Sequence[FlowObject] = ()) -> FlowSnapshot | FlowUnavailable:
    """Return the flow and the last messages about `objects`, or why NATS does not return them."""
    try:
        async with _connect(nats) as connection:
            seen = await _FlowReader(connection).read_snapshot(objects)
            return msgspec.structs.replace(seen, certificates=tuple(_list_certificates(nats, connection)))
    except BusError as error:
        return FlowUnavailable(reason=f"{NATS_SILENT}: {error}")


@asynccontextmanager
async def _connect(nats: NatsAccess) -> AsyncIterator[Connection]:
    """Connect to the first server that accepts the connection."""
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
            await connection.abort("all messages were read")
        return
    raise BusError("; ".join(problems) or "no server is configured")


class _FlowReader:
    """Reads from one server, with a limited number of concurrent requests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._room = asyncio.Semaphore(_MAX_CONCURRENT)

    async def read_snapshot(self, objects: Sequence[FlowObject]) -> FlowSnapshot:
        try:
            stream = await self._read_stream(f"{DEAD_LETTERS}.>")
        except NoStream:
            return FlowSnapshot(at=utc_now())
        letters = stream.state.subjects or {}
        queues, leading, networks, dead, accounts, found = await asyncio.gather(
            asyncio.gather(*map(self._read_queue, DURABLES)),
            self._read_last(LEADING),
            self._read_last(NETWORKS),
            self._read_messages(sorted(letters)[:_MAX_DEAD_LETTERS]),
            self._read_matching(ACCOUNT_REPORTS),
            asyncio.gather(*map(self._read_object, objects)),
        )
        services = await self._read_matching(f"{OBSERVED_SERVICE}.>", most=_MAX_SERVICES)
        return FlowSnapshot(
            at=utc_now(),
            stream=StreamSnapshot(
                created=stream.created,
                messages=stream.state.messages,
                bytes=stream.state.bytes,
                max_bytes=stream.max_bytes if stream.max_bytes > 0 else None,
            ),
            queues=tuple(queues),
            leading=leading,
            networks=networks,
            dead=tuple(sorted(dead, key=lambda word: word.published_at, reverse=True)),
            dead_count=sum(letters.values()),
            objects=tuple(found),
            accounts=accounts,
            blocked_services=tuple(filter(_is_blocked_service, services)),
        )

    async def _read_stream(self, subjects_filter: str) -> _Stream:
        """Return the stream with these subjects; the server lists at most 100,000. Raises NoStream."""
        wanted = {"subjects_filter": subjects_filter}
        return await call(self._connection, f"STREAM.INFO.{STREAM}", wanted, _Stream)

    async def _read_queue(self, durable: Durable) -> ConsumerSnapshot:
        try:
            info = await self._read_consumer(durable.name)
        except (NoConsumer, NoStream):
            return ConsumerSnapshot(name=durable.name, service=durable.service, exists=False)
        return ConsumerSnapshot(
            name=durable.name,
            service=durable.service,
            pending=info.num_pending,
            unacknowledged=info.num_ack_pending,
            redelivered=info.num_redelivered,
            waiting=info.num_waiting,
            delivered_at=info.delivered.last_active,
            acknowledged_at=info.ack_floor.last_active,
        )

    async def _read_consumer(self, name: str) -> _Consumer:
        """Return the consumer state; query again if it seems idle.

        Between two pulls, an active consumer has no waiting request.
        """
        for pause in (*_RETRY_DELAYS, None):
            info = await call(self._connection, f"CONSUMER.INFO.{STREAM}.{name}", None, _Consumer)
            if pause is None or info.num_waiting or info.num_ack_pending:
                break
            await asyncio.sleep(pause)
        return info

    async def _read_object(self, about: FlowObject) -> ObjectMessages:
        if not is_publishable_name(about.name):
            return ObjectMessages(object=about)
        subjects = [f"{prefix}.{about.name}" for prefix in _PREFIXES[about.kind]]
        subjects += [
            f"{prefix}.{each.service}.{about.kind}.{about.name}"
            for prefix in (DECIDED, DEAD_LETTERS)
            for each in SERVICES
        ]
        messages = await self._read_messages(subjects)
        if about.kind == "node":
            messages += await self._read_matching(f"{CLOUD_REPORTS}.*.*.{about.name}")
        return ObjectMessages(object=about, messages=messages)

    async def _read_matching(self, pattern: str, most: int | None = None) -> tuple[LastMessage, ...]:
        """Return the last message of each subject that matches, of at most `most` subjects."""
        stream = await self._read_stream(pattern)
        return await self._read_messages(sorted(stream.state.subjects or {})[:most])

    async def _read_messages(self, subjects: Sequence[str]) -> tuple[LastMessage, ...]:
        found = await asyncio.gather(*map(self._read_last, subjects))
        return tuple(word for word in found if word is not None)

    async def _read_last(self, subject: str) -> LastMessage | None:
        async with self._room:
            try:
                message = await fetch_last(self._connection, subject, seconds=_SECONDS)
            except NoStream:  # deleted since the stream was read
                return None
        if message is None:
            return None
        found = LastMessage(subject=subject, published_at=message.published_at)
        if isinstance(message.event, UnreadablePayload):
            return msgspec.structs.replace(found, unreadable=message.event.reason)
        return msgspec.structs.replace(found, event=message.event)


def _is_blocked_service(message: LastMessage) -> bool:
    event = message.event
    return isinstance(event, KubeServiceObserved) and event.service.blocked_condition is not None


def _list_certificates(nats: NatsAccess, connection: Connection) -> Iterator[CertificateSnapshot]:
    """Yield the certificates of the connected server and of its authority."""
    if (until := connection.server_certificate_not_after) is not None:
        yield CertificateSnapshot(name="nats-server", expires_at=until)
    if nats.tls_ca_file is not None:
        for authority in x509.load_pem_x509_certificates(nats.tls_ca_file.read_bytes()):
            yield CertificateSnapshot(name="nats-authority", expires_at=authority.not_valid_after_utc)
