"""Serves an aiohttp application on a port that others reach: few connections, with one request each."""

import asyncio
import functools
import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from libs.common.client_tls import without_system_authorities
from libs.common.service.listener import Limits, Listener, bind_sockets
from libs.common.service.serving_certificate import ServingCertificate
from libs.common.settings.read_settings import SettingsError

# aiohttp makes two default contexts at its import. Each process would keep the authorities twice (2 MB), and
# no client uses them (decision 34).
with without_system_authorities():
    from aiohttp import web
    from aiohttp.http_exceptions import HttpProcessingError

_LIMITS: Final = Limits()
_REQUEST_BYTES: Final = 64 * 2**10  # a request of a kubelet, Prometheus or a browser is far smaller


@dataclass(eq=False)
class WebListener:
    """Serves an application until `stop`."""

    application: web.Application
    certificate: ServingCertificate | None  # None: plain HTTP
    _: KW_ONLY
    limits: Limits = _LIMITS
    header_seconds: float = 5.0

    def __post_init__(self) -> None:
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None

    async def start(self, address: str, port: int, *, flag: str) -> int:
        """Listen; return the port. Raises SettingsError, which names the flag, if it cannot listen."""
        self.application.on_response_prepare.append(_close_after)
        self._runner = web.AppRunner(
            self.application, access_log=None, shutdown_timeout=1.0, handler_cancellation=True
        )
        await self._runner.setup()
        assert self._runner.server is not None
        context = self.certificate.context if self.certificate else None
        new_connection = functools.partial(_Connection, self._runner.server, self.header_seconds)
        self._listener = Listener(new_connection, context, self.limits)
        try:
            sockets = await bind_sockets(address, port)
        except OSError as error:
            await self.stop()
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise SettingsError(f"{flag}: cannot listen on {address}:{port}: {why}") from error
        self._listener.start(sockets)
        listening: int = sockets[0].getsockname()[1]
        return listening

    async def stop(self) -> None:
        """Stop the server and close its connections."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()  # running requests have one second
        if self._listener is not None:
            await self._listener.abort()


class _Connection(web.RequestHandler):
    """A connection that serves one request."""

    __slots__ = ("_closed", "_received")

    def __init__(self, server: web.Server, header_seconds: float, closed: asyncio.Event) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as AppRunner passes it on
            keepalive_timeout=header_seconds,  # runs until the headers of the request are complete
            lingering_time=1.0,  # for the rest of a body that was not read
        )
        self._received = 0
        self._closed = closed

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > _REQUEST_BYTES:
            self.force_close()
        super().data_received(data)

    def log_exception(self, *args: Any, **fields: Any) -> None:
        """Log a fault of this process, and not that a client sent no HTTP: anyone could fill the log."""
        if not isinstance(fields.get("exc_info"), (HttpProcessingError, web.RequestPayloadError)):
            super().log_exception(*args, **fields)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._closed.set()


async def _close_after(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Connection"] = "close"
    response.force_close()
