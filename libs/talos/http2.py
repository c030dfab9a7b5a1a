"""A client connection for gRPC calls over HTTP/2, with limits and TCP keepalive.

It is small and fast by intention, see docs/decisions/0011-own-http2-client-for-talos.md.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from hpack import Decoder

from libs.talos import frames
from libs.talos.frames import Frame, FrameReader, ProtocolError
from libs.talos.grpc_response import MAX_BUFFERED_BYTES, GrpcResponse

# TCP detects dead peers, because a Talos server answers HTTP/2 PINGs with GOAWAY (too_many_pings).
_TCP: Final = (
    ("TCP_KEEPIDLE", 15),  # s
    ("TCP_KEEPINTVL", 5),  # s
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 15_000),  # ms that sent data may stay unacknowledged
)
_MIB: Final = 1024 * 1024
# Undelivered data counts against both windows: this one has room for hundreds of stalled streams.
_CONNECTION_WINDOW: Final = 32 * _MIB
_MAX_HEADER_BLOCK: Final = 64 * 1024
_MAX_UNREAD_BYTES: Final = (
    _MIB  # calls wait for room, but each PING, SETTINGS and reset leads to a response frame
)
_PING_BYTES: Final = 8
_LAST_STREAM: Final = 2**31 - 1
WAIT_SECONDS: Final = 0.05  # flow control limits a machine that floods its watch


class StreamLost(Exception):
    """The call ended with its connection (GOAWAY, reset, closed) without a response; it may be retried."""


class Stream:
    """One call: its request and the receiver. `on_end` is called once, with None after success."""

    __slots__ = ("body", "connection", "headers", "id", "is_paused", "on_end", "response", "unacknowledged")

    def __init__(
        self, headers: bytes, body: bytes, answer: GrpcResponse, on_end: Callable[[Exception | None], None]
    ) -> None:
        self.headers = headers
        self.body = body
        self.response = answer
        self.on_end: Callable[[Exception | None], None] | None = on_end
        self.connection: Http2Connection | None = None  # set at the start
        self.id = 0  # 0 until it is sent
        self.is_paused = False  # whether its next message must wait
        self.unacknowledged = 0  # delivered bytes that are not acknowledged yet

    def cancel(self) -> None:
        """Cancel the call; `on_end` is not called."""
        if self.connection is not None:
            self.connection.cancel(self)


class Http2Connection(asyncio.Protocol):
    """The client side of one connection. Frames of one iteration of the event loop are written together."""

    def __init__(self, authority: str) -> None:
        self.authority = authority
        self.has_received = False  # until then the server may reject the client certificate (TLS 1.3)
        self.settled = asyncio.Event()  # set after the first data or the loss
        self.lost = asyncio.Event()
        self.loss: BaseException | None = None
        self.is_closing = False
        self.why_closed = ""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._decoder = Decoder(max_header_list_size=_MAX_HEADER_BLOCK)
        self._streams: dict[int, Stream] = {}
        self._unsent: deque[Stream] = deque()  # waiting for room
        self._next_id = 1
        self._max_streams = _LAST_STREAM
        self._stream_window = frames.DEFAULT_WINDOW  # bytes that the server accepts on a new stream
        self._window = frames.DEFAULT_WINDOW  # bytes that the server accepts now, in total
        self._is_full = False  # whether the transport's buffer is full
        self._out: list[bytes] = []
        self._unacknowledged = 0
        self._block: tuple[int, int, bytes] | None = None  # stream, flags and headers until CONTINUATION

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _TCP:
            if hasattr(socket, name):  # Linux only
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class only behaves like it
        ours = {
            frames.ENABLE_PUSH: 0,
            frames.INITIAL_WINDOW_SIZE: MAX_BUFFERED_BYTES,
            # Larger ones would end the connection for all machines; with this, apid resets such a call.
            frames.MAX_HEADER_LIST_SIZE: _MAX_HEADER_BLOCK,
        }
        self._send(frames.PREFACE)
        self._send(frames.encode_settings(ours))
        self._send(frames.encode_window_update(0, _CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

    def data_received(self, data: bytes) -> None:
        self.has_received = True
        self.settled.set()
        try:
            for one in self._reader.feed(data):
                self._receive(one)
        except Exception as error:  # noqa: BLE001 - hostile frames may make hpack raise any type
            self.close(f"not HTTP/2: {type(error).__name__}: {error}")

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._send_unsent()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.loss = exc
        self.close(f"connection lost: {exc}" if exc else "connection lost")
        self.settled.set()
        self.lost.set()

    def close(self, reason: str) -> None:
        """End all calls with StreamLost."""
        self.is_closing = True
        self.why_closed = self.why_closed or reason
        if self._transport is not None:
            self._transport.close()
        ended = [*self._streams.values(), *self._unsent]
        self._streams.clear()
        self._unsent.clear()
        for stream in ended:
            self._notify_end(stream, StreamLost(reason))

    # ---- calls

    def start(self, stream: Stream) -> None:
        """Send the call when there is room for it."""
        stream.connection = self
        if self.is_closing:
            self._notify_end(stream, StreamLost("connection lost"))
            return
        self._unsent.append(stream)
        self._send_unsent()

    def cancel(self, stream: Stream) -> None:
        """Cancel the call; `on_end` is not called."""
        if stream.on_end is None:
            return
        stream.on_end = None
        if stream.id:
            self._forget(stream, reset=True)
        elif stream in self._unsent:
            self._unsent.remove(stream)

    def _send_unsent(self) -> None:
        while self._unsent and not self._is_full and len(self._streams) < self._max_streams:
            stream = self._unsent[0]
            size = len(stream.body)
            if size > self._stream_window:
                self.close(f"the server takes no more than {self._stream_window} bytes of a call")
                return
            if size > self._window:
                return
            if self._next_id >= _LAST_STREAM:
                self.close("all streams of the connection are used up")
                return
            self._unsent.popleft()
            self._window -= size
            stream.id, self._next_id = self._next_id, self._next_id + 2
            self._streams[stream.id] = stream
            self._send(frames.encode_frame(frames.HEADERS, frames.END_HEADERS, stream.id, stream.headers))
            self._send(frames.encode_frame(frames.DATA, frames.END_STREAM, stream.id, stream.body))
            stream.headers = stream.body = b""

    def _send(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        data, self._out = b"".join(self._out), []
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.close("the server sends and does not read")

    # ---- frames

    def _receive(self, one: Frame) -> None:
        if self._block is not None and one.kind != frames.CONTINUATION:
            raise ProtocolError("headers that are not continued")
        match one.kind:
            case frames.DATA:
                self._on_data(one)
            case frames.HEADERS | frames.CONTINUATION:
                self._on_headers(one)
            case frames.RST_STREAM:
                self._on_reset(one)
            case frames.WINDOW_UPDATE if not one.stream:
                self._on_window_update(frames.decode_number(one.payload))
            case frames.SETTINGS if not one.flags & frames.ACK:
                self._on_settings(one.payload)
            case frames.PING if not one.flags & frames.ACK:
                self._answer_ping(one.payload)
            case frames.GOAWAY:
                self.close(f"the server goes away, code {int.from_bytes(one.payload[4:8], 'big')}")
            case frames.PUSH_PROMISE:
                raise ProtocolError("a push that we did not allow")

    def _answer_ping(self, payload: bytes) -> None:
        if len(payload) != _PING_BYTES:
            raise ProtocolError(f"PING of {len(payload)} bytes")
        self._send(frames.encode_frame(frames.PING, frames.ACK, 0, payload))

    def _on_reset(self, one: Frame) -> None:
        stream = self._find_stream(one.stream)
        if stream is not None:
            self._end(stream, StreamLost(f"reset by the server, code {frames.decode_number(one.payload)}"))

    def _on_window_update(self, more: int) -> None:
        self._window += more
        if self._window > frames.MAX_WINDOW:
            raise ProtocolError("a window of more than 2 GiB")
        self._send_unsent()

    def _on_settings(self, payload: bytes) -> None:
        for key, value in frames.decode_settings(payload):
            if key == frames.MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif key == frames.INITIAL_WINDOW_SIZE:
                self._stream_window = value
        self._send(frames.encode_frame(frames.SETTINGS, frames.ACK, 0))
        self._send_unsent()

    def _on_data(self, one: Frame) -> None:
        stream = self._find_stream(one.stream)
        data = frames.strip_padding(one)
        if stream is None:
            self._acknowledge(None, len(one.payload))
            return
        self._acknowledge(stream, len(one.payload) - len(data))
        try:
            stream.response.receive(data)
            if not stream.is_paused:
                self._deliver(stream)
            if one.flags & frames.END_STREAM:
                stream.response.end({})
        except Exception as error:  # noqa: BLE001 - hostile bytes end only their own call
            self._end(stream, error, reset=True)

    def _deliver(self, stream: Stream) -> None:
        before = stream.response.buffered_bytes
        try:
            stream.is_paused = stream.response.deliver()
        finally:
            self._acknowledge(stream, before - stream.response.buffered_bytes)
        if stream.is_paused:
            self._loop.call_later(WAIT_SECONDS, self._resume, stream)

    def _resume(self, stream: Stream) -> None:
        if stream.on_end is None:
            return
        try:
            self._deliver(stream)
        except Exception as error:  # noqa: BLE001 - like _on_data
            self._end(stream, error, reset=True)

    def _on_headers(self, one: Frame) -> None:
        if one.kind == frames.HEADERS:
            stream_id, flags, block = one.stream, one.flags, frames.strip_padding(one)
        elif self._block is None or self._block[0] != one.stream:
            raise ProtocolError("a continuation of nothing")
        else:
            stream_id, flags, block = self._block[0], self._block[1], self._block[2] + one.payload
        if len(block) > _MAX_HEADER_BLOCK:
            raise ProtocolError(f"more than {_MAX_HEADER_BLOCK} bytes of headers")
        if not one.flags & frames.END_HEADERS:
            self._block = (stream_id, flags, block)
            return
        self._block = None
        # Decode them also for ended streams, because they change the decoder's table.
        headers = [
            (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
            for name, value in self._decoder.decode(block, raw=True)
        ]
        stream = self._find_stream(stream_id)
        if stream is not None:
            self._deliver_headers(stream, headers, is_last=bool(flags & frames.END_STREAM))

    def _deliver_headers(self, stream: Stream, headers: list[tuple[str, str]], *, is_last: bool) -> None:
        before = stream.response.buffered_bytes
        try:
            stream.response.receive_headers(headers, is_last=is_last)
        except Exception as error:  # noqa: BLE001 - like _on_data
            self._end(stream, error, reset=not is_last)
        else:
            if is_last:
                self._end(stream, None)
        finally:
            self._acknowledge(None, before - stream.response.buffered_bytes)

    # ---- the end of a call

    def _find_stream(self, stream_id: int) -> Stream | None:
        """Return the stream, None if it has ended."""
        if stream_id % 2 == 0 or stream_id >= self._next_id:
            raise ProtocolError(f"a frame of stream {stream_id}, which was never opened")
        return self._streams.get(stream_id)

    def _end(self, stream: Stream, error: Exception | None, *, reset: bool = False) -> None:
        self._forget(stream, reset=reset)
        self._notify_end(stream, error)

    def _forget(self, stream: Stream, *, reset: bool) -> None:
        if self._streams.pop(stream.id, None) is None:
            return
        self._acknowledge(None, stream.response.buffered_bytes)
        if reset:
            self._send(frames.encode_frame(frames.RST_STREAM, 0, stream.id, frames.CANCEL.to_bytes(4, "big")))
        self._send_unsent()

    @staticmethod
    def _notify_end(stream: Stream, error: Exception | None) -> None:
        on_end, stream.on_end, stream.connection = stream.on_end, None, None
        if on_end is not None:
            on_end(error)

    def _acknowledge(self, stream: Stream | None, size: int) -> None:
        """Acknowledge delivered bytes by WINDOW_UPDATE, when there are enough for a frame."""
        self._unacknowledged += size
        if self._unacknowledged >= _MIB:
            self._send(frames.encode_window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        if stream is None:
            return
        stream.unacknowledged += size
        if stream.unacknowledged >= MAX_BUFFERED_BYTES // 4:
            self._send(frames.encode_window_update(stream.id, stream.unacknowledged))
            stream.unacknowledged = 0
