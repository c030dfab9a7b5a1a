"""The connection under a TalosChannel: grpclib's, with limits, TCP keepalive and a handshake with an end."""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, cast

from grpclib.client import Channel, Handler, Stream
from grpclib.config import Configuration
from grpclib.const import Cardinality
from grpclib.encoding.base import CodecBase
from grpclib.metadata import Deadline
from grpclib.protocol import H2Protocol

from libs.common.machine import FaultKind
from services.metadata.talos_api.credentials import Credentials
from services.metadata.talos_api.machine_reading import Unreadable
from services.metadata.talos_api.talosconfig import Endpoint

LARGEST_MESSAGE_BYTES: Final = 64 * 1024

# Dead peers are found by TCP: a Talos server answers HTTP/2 PINGs with GOAWAY (too_many_pings).
_TCP: Final = (
    ("TCP_KEEPIDLE", 15),  # s
    ("TCP_KEEPINTVL", 5),  # s
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 15_000),  # ms that sent data may stay unacknowledged
)
_TLS_SHUTDOWN_SECONDS: Final = 1.0  # asyncio's 30 s would keep a dead connection's streams waiting
_KIB: Final = 1024
# What a stream's reader has not taken yet counts against both windows: hundreds of stalled streams fit in.
_WINDOWS: Final = Configuration(
    http2_stream_window_size=64 * _KIB, http2_connection_window_size=32 * _KIB * _KIB
)


class ConnectionRejected(ConnectionError):
    """Lost after the TLS handshake and before the first HTTP/2 frame: with TLS 1.3 the client's own handshake
    succeeds before the server has looked at its certificate.
    """


def why_no_connection(error: OSError) -> tuple[FaultKind, str]:
    """What an attempt to connect ended with, told apart."""
    match error:
        case ssl.SSLCertVerificationError():
            return "certificate", f"its certificate is not accepted: {error.verify_message}"
        case ConnectionRejected():
            told = f" ({error})" if str(error) else ""
            return "certificate", f"it hung up after the TLS handshake: our certificate is not accepted{told}"
        case ssl.SSLError() if "ALERT" in (error.reason or ""):
            return "certificate", f"it refused our TLS handshake: {error.reason}"
        case ssl.SSLError():
            return "refused", f"it does not speak TLS as Talos does: {error.reason or error}"
        case TimeoutError():
            return "timeout", "no connection in time"
        case _:
            return "refused", str(error.strerror or error) or type(error).__name__


class _Bytes(CodecBase):
    """Messages stay bytes: pure code decodes them."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: type[bytes]) -> bytes:
        return message

    def decode(self, data: bytes, message_type: type[bytes]) -> bytes:
        return data


class BoundedStream(Stream[bytes, bytes]):
    """grpclib's, with a limit: a length prefix can announce 4 GB."""

    async def recv_message(self) -> bytes | None:
        if not self._recv_initial_metadata_done:
            await self.recv_initial_metadata()
        with self._wrapper:
            prefix = await self._stream.recv_data(5)
            if not prefix:
                return None
            size = int.from_bytes(prefix[1:], "big")
            if prefix[0] or size > LARGEST_MESSAGE_BYTES:
                raise Unreadable(
                    f"a compressed message or one of {size} bytes (at most {LARGEST_MESSAGE_BYTES})"
                )
            message: bytes = await self._stream.recv_data(size)
            return message


class _Protocol(H2Protocol):
    """Knows when the server has spoken: before that it has not accepted our certificate (TLS 1.3)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.has_spoken = False
        self.settled = asyncio.Event()  # spoken or lost
        self.lost = asyncio.Event()
        self.loss: BaseException | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _TCP:
            if hasattr(socket, name):  # they are Linux's
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.has_spoken = True
        self.settled.set()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.loss = exc
        self.settled.set()
        self.lost.set()
        super().connection_lost(exc)


class Connection(Channel):
    """One connection at a time to one endpoint, with its client certificate."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials, connect_seconds: float) -> None:
        super().__init__(endpoint.host, endpoint.port, codec=_Bytes(), ssl=credentials.tls, config=_WINDOWS)
        self._connect_seconds = connect_seconds
        # With ASCII, one header of one machine that is not ASCII would end the connection for all machines.
        self._h2_config.header_encoding = "latin-1"

    @property
    def is_connected(self) -> bool:
        """Made, and not lost yet."""
        return self._connected

    def stream(self, path: str, headers: Mapping[str, str], deadline: Deadline | None) -> BoundedStream:
        return BoundedStream(
            self,
            path,
            cast("Any", dict(headers)),
            Cardinality.UNARY_STREAM,
            bytes,
            bytes,
            codec=self._codec,
            status_details_codec=None,
            dispatch=self.__dispatch__,
            deadline=deadline,
        )

    def _protocol_factory(self) -> _Protocol:
        return _Protocol(Handler(), self._config, self._h2_config)

    async def _create_connection(self) -> _Protocol:
        async with asyncio.timeout(self._connect_seconds):
            transport, protocol = await self._loop.create_connection(
                self._protocol_factory,
                self._host,
                self._port,
                ssl=self._ssl,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
            )
            try:
                await protocol.settled.wait()
            except BaseException:
                transport.abort()
                raise
        if not protocol.has_spoken:
            raise ConnectionRejected(str(protocol.loss or ""))
        return protocol

    async def shut(self) -> None:
        """Close, and return once the socket is closed."""
        protocol = self._protocol
        self.close()
        if isinstance(protocol, _Protocol):
            await protocol.lost.wait()
