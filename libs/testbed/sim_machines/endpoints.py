"""The endpoints of the fleet, like several control plane machines; each can be cut and restored."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from libs.testbed.sim_machines.connection import Apid, ApidConnection, serving_context

_BACKLOG = 1024
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time

_log = logging.getLogger(__name__)


class MachineEndpoints:
    """All endpoints, in the order of their ports."""

    def __init__(
        self, apid: Apid, certificates: Path, ports: Sequence[int], *, host: str = "127.0.0.1"
    ) -> None:
        self._endpoints = [MachineEndpoint(apid, certificates, (host, port)) for port in ports]

    def open(self) -> None:
        """Listen on every port."""
        for endpoint in self._endpoints:
            endpoint.open()

    async def cut(self, index: int) -> None:
        """Close an endpoint and reset every connection through it. Raises ValueError."""
        await self._get_endpoint(index).cut()

    def restore(self, index: int) -> None:
        """Open a cut endpoint on the same port. Raises ValueError."""
        self._get_endpoint(index).open()

    def _get_endpoint(self, index: int) -> MachineEndpoint:
        if not 0 <= index < len(self._endpoints):
            raise ValueError(f"there is no endpoint {index}")
        return self._endpoints[index]


class MachineEndpoint:
    """One listener and its connections."""

    def __init__(self, apid: Apid, certificates: Path, address: tuple[str, int]) -> None:
        self._apid = apid
        self._certificates = certificates
        self._address = address
        self._accepting: asyncio.Task[None] | None = None
        self._connections: dict[asyncio.Task[None], socket.socket] = {}

    def open(self) -> None:
        """Start listening; no effect if it already listens."""
        if self._accepting is not None:
            return
        listener = socket.create_server(self._address, backlog=_BACKLOG)
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener), name=f"accept at {self._address[1]}")
        self._accepting.add_done_callback(lambda _: listener.close())

    async def cut(self) -> None:
        """Stop listening and reset all connections."""
        if self._accepting is None:
            return
        ending = [self._accepting, *self._connections]
        self._accepting = None
        for connection in self._connections.values():
            # A reset instead of a normal close, as if the control plane machine had vanished.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        for task in ending:
            task.cancel()
        await asyncio.wait(ending)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            # asyncio sets this only for sockets with proto=TCP; without it each call takes 40 ms
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serving = asyncio.create_task(self._serve_connection(connection))
            self._connections[serving] = connection
            serving.add_done_callback(self._connections.pop)

    async def _serve_connection(self, connection: socket.socket) -> None:
        """Accept TLS and wait until the connection closes; cancellation closes it."""
        try:
            protocol = await self._accept_tls(connection)
        except OSError as error:  # ssl.SSLError among them
            _log.warning("TLS handshake failed on port %d: %s", self._address[1], error)
            connection.close()
            return
        try:
            await asyncio.shield(protocol.lost)
        except asyncio.CancelledError:
            protocol.abort()
            await protocol.lost
            raise

    async def _accept_tls(self, connection: socket.socket) -> ApidConnection:
        context = serving_context(self._certificates)  # the files may have been replaced since the last one
        loop = asyncio.get_running_loop()
        _, protocol = await loop.connect_accepted_socket(self._apid.connection, connection, ssl=context)
        return protocol
