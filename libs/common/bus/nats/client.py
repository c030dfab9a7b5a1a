"""The client of nats-py, on our transport and with our parser of messages: every private name that we use."""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import ParseResult

import msgspec
import nats.errors
from nats.aio.client import Client as NatsPyClient
from nats.aio.transport import Transport

from libs.common.client_tls import make_client_context
from libs.common.json_errors import JSON_ERRORS

_VERSION: Final = "NATS/1.0"
_NONE: Final[Mapping[str, str]] = {}
_NATS_HEADER: Final = "Nats-"  # the beginning of the name


class ConnectionTransport(Transport):
    """Differs from nats-py's own transport in four ways.

    - With `encrypted`, nothing is sent before TLS. INFO arrives before TLS, so an attacker in between can
      forge it. nats-py would answer a forged one in plain text, with the signed nonce, and the attacker could
      relay it as this client's identity (nats.py#912, fixed in nats-core only).
    - `write` waits for `drain`, which nats-py calls after each flush. nats-py writes PING ahead of the
      messages that wait for a flush, so its round trip would not prove that the server has received them.
    - `drain` never waits for the peer: callers limit the unacknowledged publishes.
    - `close` aborts: a peer that does not read would delay it without a limit.
    """

    def __init__(self, *, encrypted: bool) -> None:
        self.server_id = ""
        self._encrypted = encrypted
        self._held: list[bytes] = []
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []  # TCP, then TLS over it

    def __bool__(self) -> bool:
        return True  # nats-py replaces a transport that is false by one of its own

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connect by TCP. The caller limits the time of all steps."""
        self._streams = [await asyncio.open_connection(uri.hostname, uri.port, limit=buffer_size)]

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Start TLS, with a new reader: bytes that arrived in plain text do not count."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=buffer_size)
        protocol = asyncio.StreamReaderProtocol(reader)
        name = uri if isinstance(uri, str) else uri.hostname
        transport = await loop.start_tls(self._writer.transport, protocol, ssl_context, server_hostname=name)
        assert transport is not None, "the connection exists"
        self._streams.append((reader, asyncio.StreamWriter(transport, protocol, reader, loop)))

    @property
    def _is_tls(self) -> bool:
        return len(self._streams) > 1

    @property
    def _writer(self) -> asyncio.StreamWriter:
        return self._streams[-1][1]

    def write(self, payload: bytes) -> None:
        """Send at the next `drain`."""
        self._held.append(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Send in one write. Does nothing once the connection has ended."""
        if not self._streams:
            return
        if self._encrypted and not self._is_tls:
            raise nats.errors.Error("the server does not offer TLS, but a CA file or tls:// requires it")
        if not self._writer.is_closing():  # uvloop's transports would raise
            self._writer.writelines(payload)

    async def drain(self) -> None:
        """Send what `write` has taken."""
        if self._held:
            held, self._held = self._held, []
            self.writelines(held)

    async def read(self, buffer_size: int) -> bytes:
        """Return the next bytes; b"" at the end of the connection."""
        if not self._streams:
            return b""
        try:
            return await self._streams[-1][0].read(buffer_size)
        except OSError as error:
            error.with_traceback(None)  # the reader keeps the error, whose frames would keep the reader
            raise

    async def readline(self) -> bytes:
        """Return the next line, and require TLS in the greeting of a server that offers it."""
        line = await self._streams[-1][0].readline()
        if self._is_tls or not line.startswith(b"INFO "):
            return line
        try:
            info = msgspec.json.decode(line.removeprefix(b"INFO "), type=dict[str, Any])
        except JSON_ERRORS as error:
            raise nats.errors.Error(f"not a greeting of NATS: {error}") from error
        self.server_id = str(info.get("server_id", ""))
        if self._encrypted and info.get("tls_available"):
            info["tls_required"] = True  # nats-py ignores TLS that is only available
        return b"INFO " + msgspec.json.encode(info) + b"\r\n"

    def at_eof(self) -> bool:
        """Whether the peer has ended the connection and all bytes were read."""
        return not self._streams or self._streams[-1][0].at_eof()

    def close(self) -> None:
        """Abort: drop what is not sent yet, and over TLS wait for no close_notify.

        nats-py's client is in reference cycles. With the streams, the TLS state of each connection (0.3 MB)
        would stay until a garbage collection.
        """
        for _, writer in reversed(self._streams):
            writer.transport.abort()
        self._streams = []

    async def wait_closed(self) -> None:
        """Return at once: an aborted connection waits for no close_notify."""

    @property
    def certificate_not_after(self) -> datetime | None:
        """The expiry of the server's certificate, None without TLS."""
        shown = self._writer.get_extra_info("peercert") if self._streams else None
        until = shown.get("notAfter") if shown else None
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(until), UTC) if until else None


class WireMessage(msgspec.Struct, frozen=True):
    """A received message. `status` is set in status messages of the server, otherwise ""."""

    subject: str
    reply: str
    data: bytes
    header_lines: str = ""
    status: str = ""
    description: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """All headers, those of the server and of JetStream included."""
        return dict(self._read_headers())

    @property
    def own_headers(self) -> Mapping[str, str]:
        """The headers without those that NATS defines."""
        own = {key: value for key, value in self._read_headers() if not key.startswith(_NATS_HEADER)}
        return own or _NONE  # nearly every message has none

    def _read_headers(self) -> Iterator[tuple[str, str]]:
        for line in self.header_lines.split("\r\n"):
            key, colon, value = line.partition(":")
            if colon:
                yield key.strip(), value.strip()


class Client(NatsPyClient):
    """nats-py's client with three private names of version 2.16 replaced (decision 12).

    nats-py has no parameter for a transport. Its parser of headers and subjects ends the reading task,
    without a callback, at bytes that are no text. Any publisher can put those into the stream.
    """

    def __init__(self, transport: ConnectionTransport) -> None:
        super().__init__()
        self._transport = transport

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The context for a server that requires TLS: without a CA file, the system's authorities count."""
        context: ssl.SSLContext | None = self.options.get("tls")
        if context is None:
            context = make_client_context()
            context.load_default_certs()
        return context

    async def _process_headers(self, headers: bytes | None) -> bytes | None:  # type: ignore[override]
        return headers  # parsed below

    def _build_message(  # type: ignore[override]
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> WireMessage:
        return parse_message(subject, reply, data, headers or b"")


def parse_message(subject: bytes, reply: bytes, data: bytes, block: bytes) -> WireMessage:
    """Parse a received message. Any publisher may have written it, so nothing in it raises."""
    if not block:
        return WireMessage(subject.decode(errors="replace"), reply.decode(errors="replace"), data)
    first, _, lines = block.decode(errors="replace").partition("\r\n")
    status, _, description = first.removeprefix(_VERSION).strip().partition(" ")
    return WireMessage(
        subject.decode(errors="replace"), reply.decode(errors="replace"), data, lines, status, description
    )
