"""The connection of a TalosChannel: TLS with the client certificate, and a handshake with a deadline."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, Protocol

from libs.common.contract.machine import FaultKind
from libs.talos import frames
from libs.talos.credentials import Credentials
from libs.talos.grpc_response import GrpcResponse
from libs.talos.http2 import Http2Connection, Stream, StreamLost
from libs.talos.talosconfig import Endpoint

_TLS_SHUTDOWN_SECONDS: Final = 1.0  # with asyncio's 30 s, the streams of a dead connection would wait


class CallListener(Protocol):
    """Receives a response."""

    def on_message(self, message: bytes) -> bool:
        """Receive a message; return whether the next one must wait. An exception ends the call."""

    def on_end(self, error: Exception | None) -> None:
        """Receive the end of the response. Called once, unless the stream is cancelled."""


class ConnectionRejected(ConnectionError):
    """The connection ended after the TLS handshake and before the first HTTP/2 frame.

    With TLS 1.3 the client's handshake succeeds before the server has verified the client certificate.
    """


def classify_connection_error(error: OSError) -> tuple[FaultKind, str]:
    """Return the kind and the text of a connection error."""
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


class Connection:
    """One connection at a time to one endpoint, with its client certificate."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials, connect_seconds: float) -> None:
        self._endpoint = endpoint
        self._tls = credentials.tls
        self._connect_seconds = connect_seconds
        self._http: Http2Connection | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._http is not None and not self._http.is_closing

    async def connect(self) -> None:
        """Make a connection. Raises OSError."""
        host, port = self._endpoint.host, self._endpoint.port
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        async with asyncio.timeout(self._connect_seconds):
            transport, http = await asyncio.get_running_loop().create_connection(
                lambda: Http2Connection(authority),
                host,
                port,
                ssl=self._tls,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
            )
            try:
                await http.settled.wait()
            except BaseException:
                transport.abort()
                raise
        if not http.has_received:
            raise ConnectionRejected(str(http.loss or ""))
        if http.is_closing:
            raise ConnectionAbortedError(http.why_closed)
        self._http = http

    def start(
        self, path: str, request: bytes, headers: Mapping[str, str], call: CallListener
    ) -> Stream | None:
        """Start a call; return None if the connection is lost, after ending the call."""
        http = self._http
        if http is None or http.is_closing:
            call.on_end(StreamLost("connection lost"))
            return None
        block = frames.encode_request_headers(http.authority, path, headers)
        body = b"\0" + len(request).to_bytes(4, "big") + request
        stream = Stream(block, body, GrpcResponse(call.on_message), call.on_end)
        http.start(stream)
        return stream

    def close(self) -> None:
        """Close; calls under way end with StreamLost."""
        if self._http is not None:
            self._http.close("closed on our side")

    async def close_and_wait(self) -> None:
        """Close, and return once the socket is closed."""
        self.close()
        if self._http is not None:
            await self._http.lost.wait()
