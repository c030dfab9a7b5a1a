"""The HTTP server for /healthz, /livez, /readyz and /metrics, on the loop of the work: both hang together."""

import asyncio
from collections.abc import Mapping
from typing import Final, cast

from aiohttp import web

from libs.common import metrics
from libs.common.process.readiness import Readiness
from libs.common.process.serving_certificate import ServingCertificate
from libs.common.settings.reading import SettingsError

MOST_CALLERS: Final = 64
CALL_SECONDS: Final = 10.0  # a kubelet or Prometheus is done in less; then it may call again


class HealthServer:
    """Serves until `stop`."""

    def __init__(
        self,
        readiness: Readiness,
        certificate: ServingCertificate | None,
        *,
        most_callers: int = MOST_CALLERS,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        """Without a certificate it speaks plain HTTP."""
        self._readiness = readiness
        self._certificate = certificate
        self._most_callers = most_callers
        self._call_seconds = call_seconds
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    async def start(self, address: str, port: int) -> int:
        """Listen; return the port. Raises SettingsError when that is not possible."""
        application = web.Application()
        application.add_routes(
            [
                web.get("/healthz", _alive),
                web.get("/livez", _alive),
                web.get("/readyz", self._readyz),
                web.get("/metrics", _metrics),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        assert self._runner.server is not None
        callers = _Callers(self._runner.server, most=self._most_callers, seconds=self._call_seconds)
        context = self._certificate.context if self._certificate else None
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                callers,
                address,
                port,
                ssl=context,
                ssl_handshake_timeout=self._call_seconds if context else None,
                ssl_shutdown_timeout=1.0 if context else None,
                reuse_address=True,
            )
        except OSError as error:
            await self._runner.cleanup()
            raise SettingsError(
                f"--secure-port: cannot listen on {address}:{port}: {error.strerror}"
            ) from error
        listening: int = self._listener.sockets[0].getsockname()[1]
        return listening

    async def stop(self) -> None:
        """Stop serving."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _readyz(self, request: web.Request) -> web.Response:
        problems = self._readiness.problems()
        failed = any(problems.values())
        if not failed and "verbose" not in request.query:
            return web.Response(text="ok")
        return web.Response(text=report(problems), status=503 if failed else 200)


def report(problems: Mapping[str, tuple[str, ...]]) -> str:
    """Kubernetes' form of a verbose check, with the reasons."""
    lines = []
    for name, reasons in problems.items():
        lines += [f"[-]{name} failed: {reason}" for reason in reasons] or [f"[+]{name} ok"]
    lines.append("readyz check failed" if any(problems.values()) else "readyz check passed")
    return "\n".join(lines) + "\n"


async def _alive(request: web.Request) -> web.Response:
    # That the loop came to answer is the check. /healthz says the same: the reference's chart probes
    # liveness there, and a NATS that is away must not restart anybody.
    verbose = "verbose" in request.query
    return web.Response(text=f"[+]loop ok\n{request.path[1:]} check passed\n" if verbose else "ok")


async def _metrics(request: web.Request) -> web.Response:
    accept = request.headers.get("Accept", "")
    body, content_type = await asyncio.to_thread(metrics.exposition, accept)
    return web.Response(body=body, headers={"Content-Type": content_type})


class _Callers:
    """A protocol factory: a handler for each caller, not for too many at once and for none too long.

    The port is open to the whole network, and we need our sockets for the work.
    """

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
        cast(asyncio.Transport, transport).abort()  # uvloop's behaves like one, and is none
