"""What NATS delivers: any publisher may have written subject, headers and payload."""

from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from libs.common.bus.nats.client import parse_message
from libs.common.bus.nats.jetstream import (
    ConsumerInfo,
    StreamInfo,
    decode_api_answer,
    decode_direct_answer,
    decode_message,
    parse_delivery,
)
from libs.common.bus.protocol import BusError, UnreadablePayload
from libs.common.contract import events
from libs.common.contract.subjects import subject_of
from tests.fuzz.target import Target

_GOLDEN: Final = Path(__file__).parents[1] / "contract" / "golden_events.jsonl"
# nats-server accepts a megabyte, which takes seconds here.
_nats_target = partial(Target, format="json", errors=(BusError,), max_bytes=2**16)
_BETWEEN: Final = b"\n--\n"  # separates the parts of a message
_INFO: Final = (
    b'{"name":"labeler","config":{"max_bytes":64},"created":"2026-03-01T12:00:00Z",'
    b'"state":{"messages":1,"bytes":2,"last_seq":3},"num_pending":4,"delivered":{"consumer_seq":5}}'
)
_HEADERS: Final = b"NATS/1.0\r\ntraceparent: 00-1-2-01\r\n\r\n"


def _event(data: bytes) -> None:
    event = events.decode(data)
    assert subject_of(event)
    match event:
        case events.NodeObserved() | events.NodeEnriched() | events.NodeUnreachable():
            assert event.node.resource_version_number >= 0
        case events.CsrObserved() | events.CsrEnriched():
            assert event.request.resource_version_number >= 0
    assert events.decode(msgspec.json.encode(event)) == event


def _message(data: bytes) -> None:
    """Subject, reply, header block and payload of a delivery."""
    subject, reply, block, payload = [*data.split(_BETWEEN, 3), b"", b"", b""][:4]
    raw = parse_message(subject, reply, payload, block)
    message = decode_message(raw, parse_delivery(raw))
    assert message.published_at.tzinfo is not None
    assert isinstance(message.event, UnreadablePayload) or subject_of(message.event) == message.subject
    assert not any(name.startswith("Nats-") for name in message.headers)


def _direct_answer(data: bytes) -> None:
    block, _, payload = data.partition(_BETWEEN)
    message = decode_direct_answer("a", parse_message(b"_INBOX.1", b"", payload, block))
    assert message is None or message.published_at.tzinfo is not None


def _api_answer(data: bytes) -> None:
    for kind in (StreamInfo, ConsumerInfo):
        assert isinstance(decode_api_answer(data, "INFO", kind), kind)


def _golden() -> tuple[bytes, ...]:
    return tuple(_GOLDEN.read_bytes().splitlines())


def _messages() -> tuple[bytes, ...]:
    short = b"$JS.ACK.TALOSCCM.labeler.1.7.7.1772366400000000000.0"
    long = b"$JS.ACK._.hash.TALOSCCM.labeler.1.7.7.1772366400000000000.0.token"
    return tuple(
        _BETWEEN.join((subject_of(events.decode(event)).encode(), reply, _HEADERS, event))
        for event, reply in zip(_golden(), [short, long] * 20, strict=False)
    )  # fmt: skip


def _direct_answers() -> tuple[bytes, ...]:
    head = (
        b"NATS/1.0\r\nNats-Stream: TALOSCCM\r\nNats-Subject: talosccm.v1.flow.leading\r\nNats-Sequence: 7\r\n"
    )
    time = b"Nats-Time-Stamp: 2026-03-01T12:00:00.123456789Z\r\n\r\n"
    return (
        head + time + _BETWEEN + next(event for event in _golden() if b"Leading.v1" in event),
        b"NATS/1.0 404 No Messages\r\n\r\n",
    )


TARGETS: Final = (
    Target(name="bus-event", format="json", run=_event, seeds=_golden, errors=(events.EventError,)),
    _nats_target(name="bus-message", run=_message, seeds=_messages),
    _nats_target(
        name="bus-api-answer",
        run=_api_answer,
        seeds=lambda: (_INFO, b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}'),
    ),
    _nats_target(name="bus-direct-answer", run=_direct_answer, seeds=_direct_answers),
)
