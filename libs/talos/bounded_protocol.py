"""grpclib's HTTP/2 protocol with limits: a server can fill neither our memory nor the socket's buffer."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, Final, cast

from grpclib.client import Handler
from grpclib.config import Configuration
from grpclib.exceptions import StreamTerminatedError
from grpclib.protocol import Buffer, Connection, EventsProcessor, H2Protocol, Stream
from grpclib.utils import Wrapper
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event
from h2.exceptions import NoAvailableStreamIDError
from h2.settings import SettingCodes, Settings

from libs.talos.proto.strict import InvalidResponse
from libs.talos.stream_buffer import StreamBuffer, WaiterEvent
from libs.talos.validation import MAX_BUFFERED_BYTES, MAX_MESSAGE_BYTES

# TCP detects dead peers, because a Talos server answers HTTP/2 PINGs with GOAWAY (too_many_pings).
_TCP: Final = (
    ("TCP_KEEPIDLE", 15),  # s
    ("TCP_KEEPINTVL", 5),  # s
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 15_000),  # ms that sent data may stay unacknowledged
)
# Unread data counts against both windows: this one has room for hundreds of stalled streams.
_CONNECTION_WINDOW: Final = 32 * 1024 * 1024
_MAX_HEADER_BLOCK: Final = 64 * 1024
_SETTINGS: Final = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.INITIAL_WINDOW_SIZE: MAX_BUFFERED_BYTES,
    # Larger ones would end the connection for all machines; with this, apid resets such a call.
    SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADER_BLOCK,
}
_COUNTED_AGAIN_AFTER: Final = 64  # new streams
_CACHED_HEADERS: Final = 256  # the constant ones, and the names of machines that are queried now
# Calls wait for room, but each PING, SETTINGS and reset of the server leads to a response frame.
_MAX_UNREAD_BYTES: Final = 1024 * 1024


class BoundedProtocol(H2Protocol):
    """One connection. `settled` is set by the first frame or the loss, `lost` when the socket is closed."""

    def __init__(self) -> None:
        # With ASCII, one header of one machine that is not ASCII would end the connection for all machines.
        encoding = H2Configuration(
            client_side=True,
            header_encoding="latin-1",
            validate_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_inbound_headers=False,
            normalize_outbound_headers=False,
        )
        super().__init__(Handler(), Configuration().__for_client__(), encoding)
        self.has_received = False  # until then the server may reject the client certificate (TLS 1.3)
        self.settled = asyncio.Event()
        self.lost = asyncio.Event()
        self.loss: BaseException | None = None
        self.why_closed = ""

    @property
    def is_closing(self) -> bool:
        """Whether no further call can start."""
        return bool(self.why_closed)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send our settings and windows."""
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _TCP:
            if hasattr(socket, name):  # Linux only
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        http = _CountingConnection(self.h2_config)
        http.local_settings = Settings(client=True, initial_values=_SETTINGS)
        http.encoder = cast(Any, HeaderEncoder(http.encoder))
        http.initiate_connection()
        http.increment_flow_control_window(_CONNECTION_WINDOW - http.inbound_flow_control_window)
        # uvloop's class only behaves like a Transport
        self._batched = BatchedTransport(cast(asyncio.Transport, transport), self.close)
        self.connection = _BoundedConnection(http, self._batched, config=self.config)
        self.processor = _TolerantProcessor(Handler(), self.connection)
        self.connection.flush()

    def data_received(self, data: bytes) -> None:
        """Receive data of the server. Anything that is not HTTP/2 ends the connection."""
        self.has_received = True
        if self.is_closing:
            return
        try:
            events = self.connection.feed(data)
            for event in events:
                if isinstance(event, ConnectionTerminated):
                    self.close(f"the server goes away, code {int(event.error_code or 0)}")
                else:
                    self.processor.process(event)
            self.connection.flush()
            if events:
                self.settled.set()
        except Exception as error:  # noqa: BLE001 - hostile frames make h2 raise any type
            self.close(f"not HTTP/2: {type(error).__name__}: {error}")

    def connection_lost(self, exc: BaseException | None) -> None:
        """End all calls."""
        self.loss = exc
        reason = "connection lost" if self.settled.is_set() else "not HTTP/2, connection lost"
        self.close(f"{reason}: {exc}" if exc else reason)
        self._batched.release()
        self.settled.set()
        self.lost.set()

    def close(self, reason: str) -> None:
        """Close; all calls end with StreamTerminatedError. Only the first reason counts."""
        if not self.why_closed:
            self.why_closed = reason
            self.processor.close(reason)


class BatchedTransport(asyncio.Transport):
    """grpclib writes each frame by itself, and each write costs a TLS record and a system call.

    A server that sends without reading our responses loses its connection at 1 MiB.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[str], None]) -> None:
        super().__init__()
        self._transport: asyncio.Transport | None = transport
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write the data at the end of this iteration of the event loop."""
        if not self._frames:
            self._loop.call_soon(self._flush)
        self._frames.append(bytes(data))

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Write what is left, and close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def release(self) -> None:
        """Drop the closed transport and its protocol, because both refer to this object.

        In such a cycle, 0.2 MB of TLS state would stay until a garbage collection.
        """
        self._transport = None
        self._close = lambda _: None

    def _flush(self) -> None:
        data, self._frames = b"".join(self._frames), []
        if not data or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self._close("the server sends and does not read")


class HeaderEncoder:
    """Replaces an encoder, whose dynamic table stays empty, so that a header always has the same bytes.

    hpack compares each header of each call with the whole table, to which each call adds its own timeout and
    machine. That takes 30 us and saves 150 bytes. This takes 4 us.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder  # of hpack
        self._encode_header = lru_cache(_CACHED_HEADERS)(
            lambda header: encoder.add(header, sensitive=True, huffman=False)
        )

    @property
    def header_table_size(self) -> int:
        """The size of the table that the server allows."""
        return int(self._encoder.header_table_size)

    @header_table_size.setter
    def header_table_size(self, size: int) -> None:
        self._encoder.header_table_size = size

    def encode(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the block of these headers."""
        return b"".join((self._encoder.encode(()), *map(self._encode_header, headers)))


class _CountingConnection(H2Connection):
    """h2 counts all streams whenever one opens: the 3000th watch would cost more than the first one."""

    _last_count = 0

    @property
    def open_outbound_streams(self) -> int:
        """The number of open streams, or more while it is far from the limit: closed ones are included."""
        most = min(self.remote_settings.max_concurrent_streams, 2 * self._last_count + _COUNTED_AGAIN_AFTER)
        if len(self.streams) < most:
            return len(self.streams)
        self._last_count = super().open_outbound_streams  # this also removes the closed ones
        return self._last_count


class _BoundedConnection(Connection):
    """Creates bounded streams."""

    def __init__(self, http: H2Connection, transport: asyncio.Transport, *, config: Configuration) -> None:
        super().__init__(http, transport, config=config)
        self._http = http
        self._batched = transport

    def create_stream(self, *, stream_id: int | None = None, wrapper: Wrapper | None = None) -> Stream:
        return BoundedStream(self, self._http, self._batched, wrapper=wrapper)


class BoundedStream(Stream):
    """A stream with a limit for messages: a length prefix can announce 4 GB."""

    def __init__(
        self,
        connection: Connection,
        http: H2Connection,
        transport: asyncio.Transport,
        *,
        wrapper: Wrapper | None,
    ) -> None:
        super().__init__(connection, http, transport, wrapper=wrapper)
        self._http = http
        # Each has one waiter. Three asyncio.Events of each idle watch would need 2 kB.
        self.window_updated = cast(asyncio.Event, WaiterEvent())
        self.headers_received = cast(asyncio.Event, WaiterEvent())
        self.trailers_received = cast(asyncio.Event, WaiterEvent())

    def init_stream(self, stream_id: int, connection: Connection) -> None:
        self.id = stream_id
        self._unread = StreamBuffer(partial(connection.ack, stream_id))
        self.buffer = cast(Buffer, self._unread)

    @property
    def is_readable(self) -> bool:
        """Whether there is unread data, or the call has ended."""
        return self._unread.is_readable or (self.wrapper is not None and bool(self.wrapper.cancelled))

    def report_to(self, arrived: WaiterEvent) -> None:
        """Set this event whenever the stream becomes readable. Streams may share it."""
        self._unread.arrived = arrived

    async def send_request(
        self, headers: Any, end_stream: bool = False, *, _processor: EventsProcessor
    ) -> Callable[[], None]:
        try:
            return await super().send_request(headers, end_stream, _processor=_processor)
        except NoAvailableStreamIDError as error:
            _processor.close("all streams of the connection are used up")
            raise StreamTerminatedError("all streams of the connection are used up") from error

    async def send_data(self, data: bytes, end_stream: bool = False) -> None:
        most = self._http.remote_settings.initial_window_size
        if len(data) > most:
            raise StreamTerminatedError(f"the server takes no more than {most} bytes of a call")
        await super().send_data(data, end_stream)

    def __ended__(self) -> None:
        if self.trailers is None:  # grpclib would wait for them
            self.trailers = []
            self.trailers_received.set()
        super().__ended__()

    def __terminated__(self, reason: str) -> None:
        # At the deadline the server resets the call too: the first reason cancels the task, once.
        if self.wrapper is not None and not self.wrapper.cancelled:
            super().__terminated__(reason)
            self._unread.arrived.set()

    async def recv_data(self, size: int) -> bytes:
        if size > MAX_MESSAGE_BYTES:
            raise InvalidResponse(f"a message of {size} bytes (at most {MAX_MESSAGE_BYTES})")
        return await super().recv_data(size)


class _TolerantProcessor(EventsProcessor):
    """Ignores events that a client need not know, where grpclib raises."""

    def process(self, event: Event) -> None:
        if type(event) in getattr(self, "processors", ()):  # they are gone when the connection is closed
            super().process(event)
