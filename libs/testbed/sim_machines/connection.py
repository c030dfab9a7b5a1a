"""One HTTP/2 connection as in apid: windows, unlimited streams, certificate check, ping enforcement."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from grpclib.config import Configuration
from grpclib.protocol import Connection, EventsProcessor, H2Protocol
from grpclib.server import Server
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import PingReceived
from h2.settings import SettingCodes, Settings

from libs.testbed.sim_machines.talos_service import MethodTable, RawCodec, TalosService

_STREAM_WINDOW = 65535 * 32
_CONNECTION_WINDOW = 65535 * 16
_MANY_STREAMS = 2**31 - 1  # h2's own limit of 100 is fewer than the watches of 50 machines
# grpc-go's default enforcement, which Talos does not change
_PING_SECONDS_WITH_STREAMS = 300
_PING_SECONDS_WITHOUT = 7200
_MAX_STRIKES = 2

_log = logging.getLogger(__name__)


class Apid(Server):
    """grpclib's server without its listener; `MachineEndpoint` listens."""

    def __init__(self, service: TalosService) -> None:
        # No keepalive: grpclib would count its own pings in the counter of the client's pings.
        super().__init__([service], codec=RawCodec(), config=Configuration(_keepalive_time=None))
        self._mapping = MethodTable(self._mapping)

    def connection(self) -> ApidConnection:
        """Return the protocol of an accepted connection."""
        made = self._protocol_factory()
        return ApidConnection(made.handler, made.config, made.h2_config)


class ApidConnection(H2Protocol):
    """A connection; the future `lost` completes when it is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start HTTP/2, or abort if the certificate is not for client authentication only."""
        self.lost = asyncio.get_running_loop().create_future()
        self._transport = cast(asyncio.Transport, transport)
        self._last_ping = float("-inf")
        self._h2 = H2Connection(config=self.h2_config)
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
                SettingCodes.MAX_CONCURRENT_STREAMS: _MANY_STREAMS,
            },
        )
        self.connection = Connection(self._h2, self._transport, config=self.config)
        self.processor = EventsProcessor(self.handler, self.connection)
        self.processor.processors[PingReceived] = self._on_ping
        if not is_for_clients_only(transport):
            _log.warning("connection rejected: certificate is not for client authentication only")
            self._transport.abort()
            return
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW - 65535)
        self.connection.flush()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Ignore data of a client that is rejected."""
        if not self._transport.is_closing():
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Break all calls."""
        super().connection_lost(exc)
        self.lost.set_result(None)

    def _on_ping(self, _: PingReceived) -> None:
        """Close the connection after too many pings, as grpc-go does.

        grpclib resets the counter when it sends headers or data. grpc-go then accepts the next ping.
        """
        now = asyncio.get_running_loop().time()
        has_streams = bool(self._h2.open_inbound_streams)
        allowed = _PING_SECONDS_WITH_STREAMS if has_streams else _PING_SECONDS_WITHOUT
        forgiven = self.connection.ping_count_in_sequence == 0
        if forgiven or now < self._last_ping + allowed:
            self.connection.ping_count_in_sequence += 1
        self._last_ping = now
        if self.connection.ping_count_in_sequence > _MAX_STRIKES + 1:
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM, b"too_many_pings")
            self.connection.flush()
            self.processor.close("too many pings")


def serving_context(directory: Path) -> ssl.SSLContext:
    """Return the context for mutual TLS as apid uses it, from the present files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.set_alpn_protocols(["h2"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    context.load_verify_locations(directory / "ca.crt")
    return context


def is_for_clients_only(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer's certificate has exactly the usage that Talos requires; OpenSSL accepts more."""
    der = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    certificate = x509.load_der_x509_certificate(der)
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
