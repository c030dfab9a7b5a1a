"""The client of nats-py, on our transport and with our parser of messages: every private name that we use."""

import ssl
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from nats.aio.client import Client as NatsPyClient

from libs.common.bus.nats.transport import ConnectionTransport
from libs.common.client_tls import make_client_context

_VERSION: Final = "NATS/1.0"
_NONE: Final[Mapping[str, str]] = {}
_NATS_HEADER: Final = "Nats-"  # the beginning of the name


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
