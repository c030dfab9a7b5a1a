"""HTTP/2 connections over mutual TLS as in apid: windows, unlimited streams."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from grpclib.config import Configuration
from grpclib.protocol import Connection, EventsProcessor, H2Protocol
from grpclib.server import Server
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from libs.testbed.sim_machines.talos_service import RawCodec, TalosService

_STREAM_WINDOW = 65535 * 32
_CONNECTION_WINDOW = 65535 * 16
_MANY_STREAMS = 2**31 - 1  # h2's own limit of 100 is fewer than the watches of 50 machines


class Apid(Server):
    """grpclib's server without its listener; `listen` listens."""

    def __init__(self, service: TalosService) -> None:
        # No keepalive: grpclib would count its own pings in the counter of the client's pings.
        super().__init__([service], codec=RawCodec(), config=Configuration(_keepalive_time=None))

    def connection(self) -> ApidConnection:
        """Return the protocol of an accepted connection."""
        made = self._protocol_factory()
        return ApidConnection(made.handler, made.config, made.h2_config)


class ApidConnection(H2Protocol):
    """A connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start HTTP/2."""
        self._transport = cast(asyncio.Transport, transport)
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
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW - 65535)
        self.connection.flush()


async def listen(service: TalosService, directory: Path, ports: Sequence[int], *, host: str) -> None:
    """Serve on these ports until the event loop ends, with the certificates of that directory."""
    apid, context = Apid(service), _make_context(directory)
    for port in ports:
        await asyncio.get_running_loop().create_server(apid.connection, host, port, ssl=context, backlog=1024)


def _make_context(directory: Path) -> ssl.SSLContext:
    """Return the context for mutual TLS as apid uses it, from the present files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.set_alpn_protocols(["h2"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    context.load_verify_locations(directory / "ca.crt")
    return context
