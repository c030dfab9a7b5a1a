"""Accepts connections on a port that the whole network can reach; limits their number and duration."""

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import msgspec

log = logging.getLogger(__name__)

# All addresses of both families, as in the components of Kubernetes: Go treats each of these so.
_ALL_ADDRESSES: Final = ("", "0.0.0.0", "::")  # noqa: S104 - recognised here
_BACKLOG: Final = 1024  # connections that the kernel queues before accept; the kernel may allow fewer
_ACCEPT_PAUSE_SECONDS: Final = 1.0  # after a failed accept, such as without free file descriptors


async def bind_sockets(address: str, port: int) -> tuple[socket.socket, ...]:
    """Return listening, non-blocking sockets: one for each address that a host name resolves to.

    An unspecified address means all addresses of both families, or of IPv4 if the host has no IPv6.
    Raises OSError.
    """
    if address in _ALL_ADDRESSES:
        return (_listen_on_all(port),)
    found = await asyncio.get_running_loop().getaddrinfo(address, port, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys((family, where) for family, *_, where in found)
    with ExitStack() as undo:
        sockets = [undo.enter_context(_listen(family, where)) for family, where in addresses]
        undo.pop_all()
    return tuple(sockets)


def _listen_on_all(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return _listen(socket.AF_INET6, ("::", port), all_families=True)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # IPv6 is off in this container
                raise
    return _listen(socket.AF_INET, ("0.0.0.0", port))  # noqa: S104 - clients are on other hosts


def _listen(family: int, address: tuple[Any, ...], *, all_families: bool = False) -> socket.socket:
    made = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=all_families)
    made.setblocking(False)
    return made


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits the number and the duration of connections."""

    connections: int = 64
    handshake_seconds: float = 5.0
    connection_seconds: float = 20.0  # from accept to close, the handshake included


@dataclass(eq=False)
class Listener:
    """Serves each connection with its own handler.

    It accepts every new connection. At the limit, the new one replaces the oldest connection of the source
    address with the most connections. So a source cannot close connections of another source that has fewer.
    """

    # returns a handler that sets the event when its connection is closed
    new_handler: Callable[[asyncio.Event], asyncio.Protocol]
    context: ssl.SSLContext | None  # None: plain TCP
    limits: Limits

    def __post_init__(self) -> None:
        self._sockets: Sequence[socket.socket] = ()
        self._sources: dict[asyncio.Task[None], str] = {}  # source of each open connection, oldest first
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept from these listening, non-blocking sockets; `close` closes them."""
        self._sockets = sockets
        for listening in sockets:
            self._resume(listening)

    def close(self) -> None:
        """Stop accepting connections; open ones continue."""
        for pause in self._pauses.values():
            pause.cancel()
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._sockets = ()

    async def abort(self) -> None:
        """Close every open connection."""
        open_connections = list(self._sources)
        for connection in open_connections:
            connection.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)

    def _resume(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        # One per iteration of the event loop, so that open connections progress before new ones replace them.
        try:
            accepted, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause(listening, error)
            return
        accepted.setblocking(False)
        self._open(accepted, address[0])

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        log.warning("cannot accept connections, will retry", extra={"error": str(error)})
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._pauses[listening] = loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume, listening)

    def _open(self, accepted: socket.socket, source: str) -> None:
        if len(self._sources) >= self.limits.connections:
            self._evict()

        is_served = False

        async def serve() -> None:
            nonlocal is_served
            is_served = True
            await self._serve(accepted)

        def forget(task: "asyncio.Task[None]") -> None:
            self._sources.pop(task, None)
            if not is_served:  # cancelled before it started; otherwise the transport closes the socket
                accepted.close()

        task = asyncio.create_task(serve())
        self._sources[task] = source
        task.add_done_callback(forget)

    def _evict(self) -> None:
        """Close the oldest connection of the source with the most connections."""
        of_source = Counter(self._sources.values())
        most = max(of_source.values())
        oldest = next(task for task, source in self._sources.items() if of_source[source] == most)
        del self._sources[oldest]
        oldest.cancel()

    async def _serve(self, accepted: socket.socket) -> None:
        closed = asyncio.Event()
        handshake = self.limits.handshake_seconds if self.context else None
        try:
            async with asyncio.timeout(self.limits.connection_seconds):
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self.new_handler(closed),
                    accepted,
                    ssl=self.context,
                    ssl_handshake_timeout=handshake,
                    ssl_shutdown_timeout=1.0 if self.context else None,
                )
                try:
                    await closed.wait()
                finally:
                    transport.abort()
        except OSError:
            pass  # the client disconnected, does not speak TLS, or was too slow
