"""The connection of a TalosChannel: grpclib's channel over TLS, and a handshake with a deadline."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, cast

from grpclib.client import Channel, Stream
from grpclib.const import Cardinality
from grpclib.encoding.base import CodecBase

from libs.common.contract.machine import CONNECT_STEP, FaultKind, MachineFault
from libs.talos.bounded_protocol import BoundedProtocol, BoundedStream
from libs.talos.credentials import Credentials
from libs.talos.faults import MAX_MESSAGE_CHARS
from libs.talos.talosconfig import Endpoint

_TLS_SHUTDOWN_SECONDS: Final = 1.0  # with asyncio's 30 s, the streams of a dead connection would wait


class ConnectionRejected(ConnectionError):
    """The connection ended after the TLS handshake and before the first HTTP/2 frame.

    With TLS 1.3 the client's handshake succeeds before the server has verified the client certificate.
    """


def translate_connection_error(error: OSError, *, endpoint: str, certificate_problem: str) -> MachineFault:
    """Return the fault of a failed connection; `certificate_problem` describes our own certificate."""
    kind, reason = _classify_connection_error(error)
    hint = f"; {certificate_problem}" if certificate_problem and kind == "certificate" else ""
    message = f"no connection to {endpoint}: {reason}{hint}"
    return MachineFault(kind=kind, step=CONNECT_STEP, endpoint=endpoint, message=message[:MAX_MESSAGE_CHARS])


def _classify_connection_error(error: OSError) -> tuple[FaultKind, str]:
    match error:
        case ssl.SSLCertVerificationError():
            return "certificate", f"its certificate is not trusted: {error.verify_message}"
        case ConnectionRejected():
            detail = f" ({error})" if str(error) else ""
            return "certificate", f"it closed the connection: our client certificate is not accepted{detail}"
        case ssl.SSLError() if "ALERT" in (error.reason or ""):
            return "certificate", f"it rejected our TLS handshake: {error.reason}"
        case ssl.SSLError():
            return "refused", f"TLS handshake failed: {error.reason or error}"
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


class Connection(Channel):
    """One connection at a time to one endpoint, with its client certificate.

    grpclib connects in the first call. Here the session connects before a call, and chooses another endpoint
    if that fails.
    """

    def __init__(self, endpoint: Endpoint, credentials: Credentials, connect_seconds: float) -> None:
        super().__init__(endpoint.host, endpoint.port, codec=_Bytes(), ssl=credentials.tls)
        self._endpoint = endpoint
        self._tls = credentials.tls
        self._connect_seconds = connect_seconds
        self._current: BoundedProtocol | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._current is not None and not self._current.is_closing

    async def connect(self) -> None:
        """Make a connection. Raises OSError."""
        async with asyncio.timeout(self._connect_seconds):
            transport, protocol = await asyncio.get_running_loop().create_connection(
                BoundedProtocol,
                self._endpoint.host,
                self._endpoint.port,
                ssl=self._tls,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
            )
            try:
                await protocol.settled.wait()
            except BaseException:
                transport.abort()
                raise
        if not protocol.has_received:
            raise ConnectionRejected(str(protocol.loss or ""))
        if protocol.is_closing:
            raise ConnectionAbortedError(protocol.why_closed)
        self._current = protocol

    async def __connect__(self) -> BoundedProtocol:
        """Return the connection to grpclib. Raises ConnectionError."""
        if self._current is None or self._current.is_closing:
            raise ConnectionAbortedError("connection lost")
        return self._current

    def open_stream(
        self, path: str, headers: Mapping[str, str], *, timeout: float | None
    ) -> Stream[bytes, bytes]:
        """Return a call with any number of responses, before it is sent."""
        return self.request(
            path,
            Cardinality.UNARY_STREAM,
            bytes,
            bytes,
            timeout=timeout,
            metadata=cast("dict[str, str | bytes]", headers),
        )

    def newest_stream(self) -> BoundedStream:
        """Return the stream of the call whose `send_request` has just returned."""
        assert self._current is not None
        return cast(BoundedStream, next(reversed(self._current.processor.streams.values())))

    def close(self) -> None:
        """Close; calls under way end with StreamTerminatedError."""
        if self._current is not None:
            self._current.close("closed on our side")

    async def close_and_wait(self) -> None:
        """Close, and return once the socket is closed."""
        self.close()
        if self._current is not None:
            await self._current.lost.wait()
