"""JetStream's JSON API as typed calls; its errors as bus errors, its deliveries as messages."""

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from libs.common.bus.nats.client import WireMessage
from libs.common.bus.nats.connection import Connection, NoResponders
from libs.common.bus.protocol import (
    BusError,
    ConsumerStats,
    Message,
    NoStream,
    StreamFull,
    StreamStats,
    UnreadablePayload,
    WrongLastSequence,
    decode_payload,
)
from libs.common.contract.events import Event
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import DEAD_LETTERS, STREAM, subject_of
from libs.common.json_errors import JSON_ERRORS

API: Final = "$JS.API"
API_SECONDS: Final = 5.0
NANOSECONDS: Final = 1_000_000_000
_BEYOND_ALL: Final = 2**31 - 1
_SUBJECT_SHOWN: Final = 300  # characters of a wrong subject in an error
# $JS.ACK.[<domain>.<account hash>.]<stream>.<consumer>.<five numbers>; the long form may have more tokens
_NUMBERS: Final = r"\.".join([r"([0-9]{1,19})"] * 5)
_DELIVERY: Final = re.compile(
    rf"\$JS\.ACK\.([^.]*\.[^.]*\.)??[^.]*\.[^.]*\.{_NUMBERS}(?(1)(?:\..*)?)", re.DOTALL
)


class NoConsumer(BusError):
    """The consumer does not exist (any more)."""


class JetStreamError(BusError):
    """JetStream rejected the request for a reason without its own exception."""


class NoStorage(JetStreamError):
    """The server, or the account, has no room for a stream of that size."""


# The bus error for each err_code of JetStream.
_MEANINGS: Final[Mapping[int, type[BusError]]] = {
    10002: NoStorage,
    10014: NoConsumer,
    10047: NoStorage,
    10059: NoStream,
    10071: WrongLastSequence,
    10077: StreamFull,
    10122: NoStorage,
    10164: WrongLastSequence,  # R3: another publish to the subject is in flight; without a number
}


class ApiError(msgspec.Struct, frozen=True):
    """JetStream's error object."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct, frozen=True):
    error: ApiError | None = None


class StreamState(msgspec.Struct, frozen=True):
    """Message count and size of the stream."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0


class StreamInfo(msgspec.Struct, frozen=True):
    """The stream as the server describes it; `created` is the stream ID."""

    config: dict[str, Any]
    created: str
    state: StreamState
    total: int = 0  # number of matching subjects, if the request had a filter

    @property
    def max_bytes(self) -> int:
        """The limit of the stream; below 0 = without limit."""
        return int(self.config.get("max_bytes", -1))


class DeliveryPosition(msgspec.Struct, frozen=True):
    """The last delivery of a consumer, or the last one up to which all are acknowledged."""

    consumer_seq: int = 0
    stream_seq: int = 0


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer as the server describes it."""

    name: str
    config: dict[str, Any]
    created: str = ""
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0
    delivered: DeliveryPosition = DeliveryPosition()
    ack_floor: DeliveryPosition = DeliveryPosition()


class PublishAnswer(msgspec.Struct, frozen=True):
    """The acknowledgement of a publish, or the error."""

    seq: int = 0
    error: ApiError | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata in the reply subject of a delivered message."""

    attempt: int
    sequence: int
    consumer_sequence: int
    at_nanoseconds: int
    pending: int


T = TypeVar("T")
_answer = msgspec.json.Decoder(_Answer)
_published = msgspec.json.Decoder(PublishAnswer)


async def call(connection: Connection, subject: str, request: object, answer: type[T]) -> T:
    """Send one API request. Raises NoStream, NoConsumer, JetStreamError or BusError."""
    payload = b"" if request is None else msgspec.json.encode(request)
    response = await connection.request(f"{API}.{subject}", payload, seconds=API_SECONDS)
    return decode_api_answer(response.data, subject, answer)


def decode_api_answer(data: bytes, subject: str, answer: type[T]) -> T:
    """Return the response of the API. Raises the bus error of its error object, BusError for other bytes."""
    try:
        error = _answer.decode(data).error
        if error is None:
            return msgspec.json.decode(data, type=answer)
    except JSON_ERRORS as broken:
        raise BusError(f"{subject}: not an answer of the JetStream API: {broken}") from broken
    raise translate_error(error, subject)


def translate_error(error: ApiError, subject: str) -> BusError:
    """Return the exception for an error of JetStream."""
    meaning = _MEANINGS.get(error.err_code, JetStreamError)
    return meaning(f"{subject}: {error.description} ({error.err_code})")


async def fetch_stream_info(connection: Connection) -> StreamInfo:
    """Return the stream. Raises NoStream or BusError."""
    return await call(connection, f"STREAM.INFO.{STREAM}", None, StreamInfo)


async def fetch_consumer_info(connection: Connection, name: str) -> ConsumerInfo:
    """Return a consumer of the stream. Raises NoStream, NoConsumer or BusError."""
    return await call(connection, f"CONSUMER.INFO.{STREAM}.{name}", None, ConsumerInfo)


async def fetch_stats(connection: Connection) -> StreamStats:
    """Return the counts and sizes, by one small request for the stream and one per durable at once.

    Raises NoStream or BusError.
    """
    # With an offset beyond the last subject, the server counts the dead letters but lists none.
    request = {"subjects_filter": f"{DEAD_LETTERS}.>", "offset": _BEYOND_ALL}
    info, queues = await asyncio.gather(
        call(connection, f"STREAM.INFO.{STREAM}", request, StreamInfo),
        asyncio.gather(*(_fetch_consumer_stats(connection, durable.name) for durable in DURABLES)),
    )
    return StreamStats(
        messages=info.state.messages,
        bytes=info.state.bytes,
        max_bytes=info.max_bytes,
        dead_letters=info.total,
        first_sequence=info.state.first_seq,
        consumers=tuple(queue for queue in queues if queue is not None),
    )


async def _fetch_consumer_stats(connection: Connection, name: str) -> ConsumerStats | None:
    try:
        info = await fetch_consumer_info(connection, name)
    except NoConsumer:
        return None
    return ConsumerStats(
        name=name,
        pending=info.num_pending,
        unacknowledged=info.num_ack_pending,
        redelivered=info.num_redelivered,
        waiting=info.num_waiting,
        delivered=info.delivered.consumer_seq,
        acknowledged_sequence=info.ack_floor.stream_seq,
    )


async def create_or_update_consumer(connection: Connection, config: Mapping[str, Any]) -> ConsumerInfo:
    """Create or update the consumer. Raises JetStreamError if it cannot be updated."""
    # Name and filter are in the subject, so that the server can check the permission (else 10137).
    subject = f"CONSUMER.CREATE.{STREAM}.{config['name']}.{config['filter_subject']}"
    return await call(connection, subject, {"stream_name": STREAM, "config": config}, ConsumerInfo)


async def delete_consumer(connection: Connection, name: str) -> None:
    """Delete the consumer. Raises NoConsumer if it does not exist."""
    await call(connection, f"CONSUMER.DELETE.{STREAM}.{name}", None, _Answer)


async def publish(
    connection: Connection, subject: str, payload: bytes, headers: dict[str, str], *, seconds: float
) -> int:
    """Store a message; return its sequence. Raises WrongLastSequence, StreamFull, NoStream or BusError."""
    try:
        answer = await connection.request(subject, payload, seconds=seconds, headers=headers)
        published = _published.decode(answer.data)
    except NoResponders as error:
        raise NoStream(f"{subject}: no stream {STREAM} accepts it") from error
    except JSON_ERRORS as error:
        raise BusError(f"{subject}: not an acknowledgement: {error}") from error
    if published.error is not None:
        raise translate_error(published.error, subject)
    return published.seq


async def fetch_last(connection: Connection, subject: str, *, seconds: float) -> Message | None:
    """Return the last message of a subject, None if there is none. Raises NoStream or BusError."""
    try:
        answer = await connection.request(f"{API}.DIRECT.GET.{STREAM}.{subject}", seconds=seconds)
    except NoResponders as error:
        raise NoStream(f"{subject}: no stream {STREAM}") from error
    return decode_direct_answer(subject, answer)


def decode_direct_answer(subject: str, answer: WireMessage) -> Message | None:
    """Return the message of a DIRECT.GET, None if there is none. Raises BusError for any other answer."""
    if answer.status == "404":
        return None
    headers = answer.headers
    try:
        stored_subject, sequence = headers["Nats-Subject"], int(headers["Nats-Sequence"])
        published_at = datetime.fromisoformat(headers["Nats-Time-Stamp"])
    except (KeyError, ValueError) as error:
        said = f"{answer.status} {answer.description}".strip() or repr(error)
        raise BusError(f"{subject}: DIRECT.GET answered {said}") from error
    if answer.status or published_at.tzinfo is None:
        raise BusError(f"{subject}: DIRECT.GET answered {answer.status} {answer.description}")
    return Message(
        subject=stored_subject,
        event=_event(stored_subject, answer.data),
        sequence=sequence,
        published_at=published_at,
        headers=answer.own_headers,
    )


def parse_delivery(raw: WireMessage) -> Delivery:
    """Parse the reply subject of a delivery, in either form (ADR-15). Raises BusError for other subjects."""
    found = _DELIVERY.fullmatch(raw.reply)
    if found is None:
        raise BusError(f"{raw.subject}: not delivered by JetStream (reply {raw.reply!r})")
    attempt, sequence, consumer_sequence, at, pending = map(int, found.groups()[1:])
    return Delivery(
        attempt=attempt,
        sequence=sequence,
        consumer_sequence=consumer_sequence,
        at_nanoseconds=at,
        pending=pending,
    )


def decode_message(raw: WireMessage, delivery: Delivery) -> Message:
    """Return the delivered message."""
    return Message(
        subject=raw.subject,
        event=_event(raw.subject, raw.data),
        sequence=delivery.sequence,
        published_at=datetime.fromtimestamp(delivery.at_nanoseconds / NANOSECONDS, UTC),
        headers=raw.own_headers,
        redelivered=delivery.attempt > 1,
    )


def _event(subject: str, data: bytes) -> Event | UnreadablePayload:
    """Decode the event. NATS grants rights per subject, so an event of another subject is not trusted."""
    event = decode_payload(data)
    own = subject if isinstance(event, UnreadablePayload) else subject_of(event)
    if own != subject:
        return UnreadablePayload(reason=f"{type(event).__name__} of {own[:_SUBJECT_SHOWN]!a}", payload=data)
    return event
