"""Who calls on the health port, and for how long: it is open to the network, and we need our sockets."""

import asyncio
from typing import Final

from aiohttp import web

MOST_CALLERS: Final = 64
CALL_SECONDS: Final = 10.0  # a kubelet or Prometheus is done in less; then it may call again


class Callers:
    """A protocol factory: a handler for each caller, not for too many at once and for none too long."""

    def __init__(self, server: web.Server, *, most: int, seconds: float) -> None:
        self._server = server
        self._most = most
        self._seconds = seconds

    def __call__(self) -> asyncio.Protocol:
        if len(self._server.connections) >= self._most:
            return _Refused()
        return _Caller(self._server, self._seconds)


class _Caller(web.RequestHandler):
    """Ends in order after its time, finishing what it does; by force after twice that."""

    __slots__ = ("_ends", "_seconds")

    def __init__(self, server: web.Server, seconds: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as AppRunner passes it on
            keepalive_timeout=seconds,
        )
        self._seconds = seconds
        self._ends: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        later = self._loop.call_later
        self._ends = [later(self._seconds, self.close), later(2 * self._seconds, self.force_close)]

    def connection_lost(self, exc: BaseException | None) -> None:
        for end in self._ends:
            end.cancel()
        super().connection_lost(exc)


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
