"""Windows, memory and late frames of one HTTP/2 connection, against a server that does as it likes."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.talos import frames
from libs.talos.grpc_response import MAX_BUFFERED_BYTES, GrpcResponse
from libs.talos.http2 import Http2Connection, Stream, StreamLost

HEADERS = b"\x88\x5f\x10application/grpc"  # :status 200, content-type
OK = b"\x00\x0bgrpc-status\x010"


class Wire(asyncio.Transport):
    """What the client has written; `reads` = the server takes it off."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def setsockopt(self, *_: object) -> None:
        """No socket."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0 if self.reads else len(self.written)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def frames(self) -> list[frames.Frame]:
        """Behind preface, SETTINGS and the first WINDOW_UPDATE."""
        return list(frames.FrameReader().feed(self.written[len(frames.PREFACE) :]))[2:]


class Conversation:
    """One connection, its wire, and the calls made over it."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.http = Http2Connection("server:50000")
        self.http.connection_made(self.wire)
        self.ends: dict[int, Exception | None] = {}
        self.waits = False  # whether who hears a message wants the next one later

    def call(self) -> Stream:
        def end(error: Exception | None) -> None:
            self.ends[stream.id] = error

        stream = Stream(b"", b"request", GrpcResponse(lambda message: self.waits), end)
        self.http.start(stream)
        return stream

    def hear(self, *some: bytes) -> None:
        for one in some:
            self.http.data_received(one)


async def test_a_server_that_only_sends_and_never_reads_does_not_fill_our_memory():
    talk = Conversation()
    stream = talk.call()
    await asyncio.sleep(0)
    talk.wire.reads = False
    ping = frames.encode_frame(frames.PING, 0, 0, b"8 bytes.")
    for _ in range(200):
        if talk.wire.closed:
            break
        talk.hear(ping * 1000)
        await asyncio.sleep(0)
    assert talk.wire.closed
    assert len(talk.wire.written) < 2 * 1024 * 1024
    assert isinstance(talk.ends[stream.id], StreamLost)


async def test_a_ping_of_another_size_is_no_http2():
    talk = Conversation()
    talk.hear(frames.encode_frame(frames.PING, 0, 0, bytes(16_000)))
    assert talk.wire.closed


_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["call", "headers", "data", "message", "trailers", "reset", "cancel", "wait"]),
        st.integers(0, 6),
        st.integers(0, 3_000),
    ),
    max_size=60,
)


@given(_ACTS)
@settings(max_examples=80, deadline=None)
def test_every_byte_is_acknowledged_once_whatever_happens_to_its_call(acts: list[tuple[str, int, int]]):
    asyncio.run(_byte_by_byte(acts))


async def _byte_by_byte(acts: list[tuple[str, int, int]]) -> None:
    talk, sent = Conversation(), 0
    calls: list[Stream] = []
    for act, which, size in acts:
        if act == "call" or not calls:
            calls.append(talk.call())
            continue
        stream = calls[which % len(calls)]
        match act:
            case "headers":
                talk.hear(frames.encode_frame(frames.HEADERS, frames.END_HEADERS, stream.id, HEADERS))
            case "data" | "message":
                body = bytes(size) if act == "data" else b"\0" + size.to_bytes(4, "big") + bytes(size)
                payload = bytes((which,)) + body + bytes(which)
                sent += len(payload)
                talk.hear(frames.encode_frame(frames.DATA, frames.PADDED, stream.id, payload))
            case "trailers":
                flags = frames.END_HEADERS | frames.END_STREAM
                talk.hear(frames.encode_frame(frames.HEADERS, flags, stream.id, OK))
            case "reset":
                talk.hear(frames.encode_frame(frames.RST_STREAM, 0, stream.id, bytes(4)))
            case "cancel":
                stream.cancel()
            case "wait":
                talk.waits = bool(which % 2)
    assert not talk.wire.closed
    for stream in calls:
        stream.cancel()
    await asyncio.sleep(0)
    told = [
        frames.decode_number(one.payload)
        for one in talk.wire.frames()
        if one.kind == frames.WINDOW_UPDATE and not one.stream
    ]
    assert sum(told) + talk.http._unacknowledged == sent


async def test_what_a_stalled_reader_may_be_sent_is_bounded():
    talk = Conversation()
    talk.waits = True
    stream = talk.call()
    talk.hear(frames.encode_frame(frames.HEADERS, frames.END_HEADERS, stream.id, HEADERS))
    message = b"\0" + (1000).to_bytes(4, "big") + bytes(1000)
    for _ in range(MAX_BUFFERED_BYTES // len(message) + 2):
        talk.hear(frames.encode_frame(frames.DATA, 0, stream.id, message))
    assert stream.id in talk.ends
    assert stream.response.buffered_bytes <= MAX_BUFFERED_BYTES + len(message)


@pytest.mark.parametrize("late", ["data", "headers", "reset", "window"])
async def test_a_late_frame_of_a_call_that_was_cancelled_harms_no_other(late: str):
    talk = Conversation()
    cancelled, other = talk.call(), talk.call()
    cancelled.cancel()
    talk.hear(
        {
            "data": frames.encode_frame(frames.DATA, 0, cancelled.id, bytes(100)),
            "headers": frames.encode_frame(frames.HEADERS, frames.END_HEADERS, cancelled.id, HEADERS),
            "reset": frames.encode_frame(frames.RST_STREAM, 0, cancelled.id, bytes(4)),
            "window": frames.encode_window_update(cancelled.id, 5),
        }[late],
        frames.encode_frame(frames.HEADERS, frames.END_HEADERS, other.id, HEADERS),
        frames.encode_frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, other.id, OK),
    )
    assert talk.ends == {other.id: None}
    await asyncio.sleep(0)
    assert [one.stream for one in talk.wire.frames() if one.kind == frames.RST_STREAM] == [cancelled.id]
