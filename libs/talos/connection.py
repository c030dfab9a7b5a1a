"""The connection under a TalosChannel: TLS with our certificate, and a handshake with an end."""

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

_TLS_SHUTDOWN_SECONDS: Final = 1.0  # asyncio's 30 s would keep a dead connection's streams waiting


class CallListener(Protocol):
    """Who takes an answer."""

    def on_message(self, message: bytes) -> bool:
        """One message; whether the next one has to wait a little. What it raises ends the call."""

    def on_end(self, error: Exception | None) -> None:
        """Nothing more will come. Called once, unless the stream is cancelled."""


class ConnectionRejected(ConnectionError):
    """Lost after the TLS handshake and before the first HTTP/2 frame: with TLS 1.3 the client's own handshake
    succeeds before the server has looked at its certificate.
    """


def classify_connection_error(error: OSError) -> tuple[FaultKind, str]:
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


class Connection:
    """One connection at a time to one endpoint, with its client certificate."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials, connect_seconds: float) -> None:
        self._endpoint = endpoint
        self._tls = credentials.tls
        self._connect_seconds = connect_seconds
        self._http: Http2Connection | None = None

    @property
    def is_connected(self) -> bool:
        """Made, and not lost yet."""
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
        """Begin a call; None if the connection is lost, once the call was told so."""
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
