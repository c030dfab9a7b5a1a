"""What one server can do to our memory and to our other calls, frame by frame."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

import pytest
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, PingFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.talos.channel import CallEnded, StreamLost
from libs.talos.proto.strict import InvalidResponse
from libs.talos.stream_buffer import StreamBuffer, WaiterEvent
from libs.talos.validation import MAX_MESSAGE_BYTES
from tests.bus_actors import wait_until
from tests.talos_actors import BEGIN, OK, Conversation, prefixed


async def test_the_frames_of_one_turn_are_written_together():
    talk = Conversation()
    for _ in range(5):  # the preface, and our acknowledgement of the server's settings
        await asyncio.sleep(0)
    before = talk.server.writes
    calls = [
        asyncio.create_task(talk.channel.collect("/a/B", b"r", {}, deadline_seconds=90)) for _ in range(9)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(talk.server.streams) == 9
    assert talk.server.writes == before + 1
    for stream, call in zip(list(talk.server.streams), calls, strict=True):
        talk.server.answer(stream, b"one", b"two")
        assert await call == [b"one", b"two"]


async def test_a_server_that_only_sends_and_never_reads_does_not_fill_our_memory():
    talk = Conversation()
    call = await talk.call()
    talk.server.reads = False
    ping = PingFrame(opaque_data=b"8 bytes.").serialize()
    for _ in range(200):
        if talk.server.closed:
            break
        talk.server.send(ping * 1000)
        await asyncio.sleep(0)
    assert talk.server.closed
    assert talk.server.unread < 2 * 1024 * 1024
    with pytest.raises(StreamLost, match="does not read"):
        await call


async def test_a_ping_of_another_size_is_no_http2():
    talk = Conversation()
    talk.server.send((16_000).to_bytes(3, "big") + b"\6\0\0\0\0\0" + bytes(16_000))
    assert talk.server.closed
    assert "not HTTP/2" in talk.server.client.why_closed


@pytest.mark.parametrize("length", [1, 4], ids=["bytes", "small frames"])
async def test_frames_that_nobody_reads_are_bounded_and_end_their_own_call_only(length: int):
    talk = Conversation()
    flooded, honest = await talk.call(), await talk.call()
    stream, other = talk.server.streams
    talk.server.http.send_headers(stream, BEGIN)
    talk.server.send(DataFrame(stream, b"\0" * length).serialize() * 20_000)
    assert not talk.server.closed
    with pytest.raises((StreamLost, InvalidResponse)):
        await flooded
    talk.server.answer(other, b"fine")
    assert await honest == [b"fine"]


async def test_empty_frames_are_not_the_end_of_a_response():
    talk = Conversation()
    call = await talk.call()
    (stream,) = talk.server.streams
    talk.server.http.send_headers(stream, BEGIN)
    talk.server.send(DataFrame(stream).serialize() * 10_000)
    padded = DataFrame(stream, pad_length=200, flags=["PADDED"]).serialize()
    talk.server.send(padded * 100)
    talk.server.http.send_data(stream, prefixed(b"message"))
    talk.server.http.send_headers(stream, OK, end_stream=True)
    talk.server.send()
    assert await call == [b"message"]


@pytest.mark.parametrize(
    "prefix",
    [b"\1\0\0\0\1a", b"\0\xff\xff\xff\xff", b"\0" + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big")],
    ids=["compressed", "4 GB", "one byte too long"],
)
async def test_a_message_that_is_too_large_or_compressed_is_invalid_by_its_prefix(prefix: bytes):
    talk = Conversation()
    call = await talk.call()
    (stream,) = talk.server.streams
    talk.server.http.send_headers(stream, BEGIN)
    talk.server.http.send_data(stream, prefix)
    talk.server.send()
    with pytest.raises(InvalidResponse):
        await call
    await asyncio.sleep(0)
    assert talk.server.reset == [stream]


@pytest.mark.parametrize(
    ("headers", "code", "text"),
    [
        ([(":status", "503")], "UNAVAILABLE", "Received :status = '503'"),
        ([*BEGIN, ("grpc-status", "9" * 5000)], "UNKNOWN", "Invalid grpc-status"),
        ([*BEGIN, ("grpc-status", "5"), ("grpc-message", "no%20such %C3%A4")], "NOT_FOUND", "no such ä"),
    ],
)
async def test_a_status_has_the_meaning_of_grpc(headers: list[tuple[str, str]], code: str, text: str):
    talk = Conversation()
    call = await talk.call()
    talk.server.http.send_headers(talk.server.streams[0], headers, end_stream=True)
    talk.server.send()
    with pytest.raises(CallEnded) as ended:
        await call
    assert ended.value.status.code == code
    assert text in ended.value.status.message


async def test_a_response_that_ends_without_trailers_has_no_status():
    talk = Conversation()
    call = await talk.call()
    (stream,) = talk.server.streams
    talk.server.http.send_headers(stream, BEGIN)
    talk.server.http.send_data(stream, prefixed(b"message"), end_stream=True)
    talk.server.send()
    with pytest.raises(CallEnded, match="Missing grpc-status"):
        await call


async def test_frames_that_a_client_need_not_know_are_ignored():
    talk = Conversation()
    call = await talk.call()
    (stream,) = talk.server.streams
    talk.server.http.send_headers(stream, [(":status", "103")])
    talk.server.send((6).to_bytes(3, "big") + b"\x0b\0\0\0\0\0" + b"grease")
    talk.server.answer(stream, b"message")
    assert await call == [b"message"]


@pytest.mark.parametrize("late", ["data", "headers", "reset", "window"])
async def test_a_late_frame_of_a_call_that_was_cancelled_harms_no_other(late: str):
    talk = Conversation()
    cancelled, other = await talk.call(), await talk.call()
    stream, living = talk.server.streams
    # The server has sent this before it received the reset.
    match late:
        case "data":
            talk.server.http.send_headers(stream, BEGIN)
            talk.server.http.send_data(stream, bytes(100))
        case "headers":
            talk.server.http.send_headers(stream, BEGIN)
        case "reset":
            talk.server.http.reset_stream(stream)
        case "window":
            talk.server.http.increment_flow_control_window(5, stream)
    frames = talk.server.http.data_to_send()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    talk.server.client.data_received(frames)
    talk.server.answer(living, b"fine")
    assert await other == [b"fine"]
    assert not talk.server.closed


async def test_a_lost_call_leaves_no_cancellation_to_its_task():
    talk = Conversation()

    async def call_twice() -> None:
        async with asyncio.timeout(None) as limit:
            with pytest.raises(StreamLost):
                await talk.channel.collect("/a/B", b"r", {}, deadline_seconds=90)
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()

    task = asyncio.create_task(call_twice())
    await wait_until(lambda: bool(talk.server.streams))
    talk.server.http.reset_stream(talk.server.streams[0])
    talk.server.send()
    with pytest.raises(TimeoutError):
        await task


async def test_a_deadline_that_server_and_client_notice_together_is_a_timeout():
    talk = Conversation()
    call = await talk.call(deadline_seconds=0.05)
    begun = datetime.now(UTC)
    while (datetime.now(UTC) - begun).total_seconds() < 0.06:
        pass  # the timer is due, and the reset comes in the same turn
    talk.server.http.reset_stream(talk.server.streams[0])
    talk.server.send()
    with pytest.raises((TimeoutError, StreamLost)):
        await call


async def test_no_more_streams_are_open_than_the_server_allows_and_ended_ones_make_room():
    talk = Conversation()
    talk.server.http.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 3})
    talk.server.send()
    calls = [
        asyncio.create_task(talk.channel.collect("/a/B", b"r", {}, deadline_seconds=90)) for _ in range(150)
    ]

    def has_streams(count: int) -> bool:
        return len(talk.server.streams) >= count

    for done in range(150):
        await wait_until(partial(has_streams, done + 1))
        assert len(talk.server.streams) - done <= 3
        talk.server.answer(talk.server.streams[done], b"x")
        await asyncio.sleep(0)
    assert await asyncio.gather(*calls) == [[b"x"]] * 150


async def test_one_task_reads_several_idle_streams():
    talk, arrived = Conversation(), WaiterEvent()
    streams = [await talk.channel.follow("/a/Watch", b"request", {}, arrived) for _ in range(3)]
    await wait_until(lambda: len(talk.server.streams) == 3)
    for number in talk.server.streams:
        talk.server.http.send_headers(number, BEGIN)
    talk.server.send()
    assert not any(stream.is_readable for stream in streams)
    talk.server.http.send_data(talk.server.streams[1], prefixed(b"one") + prefixed(b"two"))
    talk.server.send()
    await arrived.wait()
    assert [stream.is_readable for stream in streams] == [False, True, False]
    assert [await streams[1].receive(), await streams[1].receive()] == [b"one", b"two"]
    assert not streams[1].is_readable
    arrived.clear()
    talk.server.http.send_headers(talk.server.streams[1], OK, end_stream=True)
    talk.server.send()
    await arrived.wait()
    assert await streams[1].receive() is None
    for stream in streams:
        await stream.close()
    await wait_until(lambda: talk.server.reset == [talk.server.streams[0], talk.server.streams[2]])


async def test_a_status_ends_an_idle_stream():
    talk, arrived = Conversation(), WaiterEvent()
    stream = await talk.channel.follow("/a/Watch", b"request", {}, arrived)
    await wait_until(lambda: bool(talk.server.streams))
    talk.server.http.send_headers(talk.server.streams[0], BEGIN)
    talk.server.http.send_headers(
        talk.server.streams[0], [("grpc-status", "14"), ("grpc-message", "shut down")], end_stream=True
    )
    talk.server.send()
    await arrived.wait()
    with pytest.raises(CallEnded) as ended:
        await stream.receive()
    assert (ended.value.status.code, ended.value.status.message) == ("UNAVAILABLE", "shut down")
    assert not talk.channel.is_busy


@pytest.mark.parametrize("begun", [b"", prefixed(b"message")[:-1]], ids=["idle", "within a message"])
async def test_a_lost_connection_ends_streams_and_cancels_nothing(begun: bytes):
    talk, arrived = Conversation(), WaiterEvent()
    streams = [await talk.channel.follow("/a/Watch", b"request", {}, arrived) for _ in range(2)]
    await wait_until(lambda: len(talk.server.streams) == 2)
    for number in talk.server.streams:
        talk.server.http.send_headers(number, BEGIN)
        talk.server.http.send_data(number, begun)
    talk.server.send()
    asyncio.get_running_loop().call_later(0.01, talk.server.client.connection_lost, None)
    for stream in streams:
        with pytest.raises(StreamLost, match="connection lost"):
            await stream.receive()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    assert not talk.channel.is_busy


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Only objects without reference cycles are freed meanwhile."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_a_lost_connection_is_freed_without_a_garbage_collection():
    with no_garbage_collection():
        talk = Conversation()
        call = await talk.call()
        talk.server.answer(talk.server.streams[0], b"fine")
        await call
        transport, client = weakref.ref(talk.server), weakref.ref(talk.server.client)
        talk.server.client.connection_lost(None)
        del talk, call
        await asyncio.sleep(0)  # the event loop runs what it had scheduled
        assert transport() is None
        assert client() is None


async def test_a_transport_that_has_closed_takes_no_more_frames():
    talk = Conversation()
    stream = await talk.channel.follow("/a/Watch", b"request", {}, WaiterEvent())
    await wait_until(lambda: bool(talk.server.streams))
    talk.server.client.connection_lost(None)
    written = talk.server.writes
    await stream.close()  # grpclib would reset the stream on the server
    talk.server.client.connection.flush()
    await asyncio.sleep(0)
    assert talk.server.writes == written
    assert talk.server.client.connection.is_closing()


async def test_a_lost_stream_is_freed_without_a_garbage_collection():
    with no_garbage_collection():
        talk, arrived = Conversation(), WaiterEvent()
        stream = await talk.channel.follow("/a/Watch", b"request", {}, arrived)
        received = weakref.ref(stream._unread)
        talk.server.client.connection_lost(None)
        error: Exception | None = None
        try:
            await stream.receive()
        except StreamLost as lost:
            error = lost.with_traceback(None)
        assert "connection lost" in str(error)
        del stream
        assert received() is None


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=60), st.integers(0, 400))
@settings(max_examples=100, deadline=None)
def test_each_byte_is_acknowledged_once(frames: list[tuple[int, int]], read: int):
    asyncio.run(_read_some(frames, read))


async def _read_some(frames: list[tuple[int, int]], read: int) -> None:
    acknowledged: list[int] = []
    buffer = StreamBuffer(acknowledged.append)
    for size, padding in frames:
        buffer.add(bytes(size), size + padding)
    available = sum(size for size, _ in frames)
    await buffer.read(min(read, available))
    assert len(acknowledged) <= sum(padding > 0 for _, padding in frames) + 1
    assert sum(acknowledged) + buffer.unacked_size() == sum(size + padding for size, padding in frames)
