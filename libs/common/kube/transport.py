"""One HTTP session to one API server: deadlines, requested retries, translated errors."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from libs.common.kube.errors import (
    KubeError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_from,
)
from libs.common.kube.http_session import MAX_LINE_BYTES, HttpSession, read_body
from libs.common.kube.keepalive_socket import describe_error
from libs.common.kube.kube_config import KubeConfig, KubeConfigError
from libs.common.kube.request import Request
from libs.common.kube.server_identity import ServerIdentity
from libs.common.kube.tls_handshake import fetch_server_identity
from libs.common.kube.web_socket import ReadMessage, open_web_socket

DEADLINE_SECONDS: Final = 15.0
# Maximum. Each costs a handshake and 0.3 MB of TLS buffers, and a thousand joining machines would use any
# number. With 24, an API server that needs 20 ms per write still gets more writes than it can store.
CONNECTIONS: Final = 24
_PAUSE_FLOOR_SECONDS: Final = 0.25  # for a server that sends "Retry-After: 0"

# verb, resource with its subresource ("nodes/status"), HTTP status (0: none), seconds
RequestObserver = Callable[[str, str, int, float], None]
ReadLine = Callable[[], Awaitable[bytes]]


class Transport:
    """Sends requests until they succeed, are rejected or reach their deadline."""

    def __init__(
        self,
        config: KubeConfig,
        *,
        user_agent: str,
        deadline_seconds: float = DEADLINE_SECONDS,
        connections: int = CONNECTIONS,
        observe: RequestObserver = lambda verb, resource, status, seconds: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Read the credentials; `jitter` is uniform in [0, 1). Raises KubeConfigError."""
        self._config = config
        self._user_agent = user_agent
        self._deadline_seconds = deadline_seconds
        self._observe = observe
        self._jitter = jitter
        self._session = HttpSession(config, user_agent=user_agent, connections=connections)
        self.server_date = ""  # the server's clock in its last response, in HTTP format

    def with_own_connections(self, *, connections: int) -> "Transport":
        """Return another session to the same server with the same identity."""
        return Transport(
            self._config,
            user_agent=self._user_agent,
            deadline_seconds=self._deadline_seconds,
            connections=connections,
            observe=self._observe,
            jitter=self._jitter,
        )

    @property
    def server(self) -> str:
        """The API server's URL, for messages."""
        return self._config.server

    def problems(self) -> tuple[str, ...]:
        """Return the problems of the credentials, in words for /readyz."""
        problem = self._session.credentials.problem
        return (problem,) if problem else ()

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def fetch_server_identity(self) -> ServerIdentity:
        """Return the names and addresses in the server's current certificate. Raises KubeError.

        Raises Unreachable behind a proxy: the handshake would go past it.
        """
        if self._config.proxy_url:
            raise Unreachable(f"{self._config.source}: proxy-url hides the certificate of the API server")
        await self._session.refresh_credentials()
        return await fetch_server_identity(
            self._config.server,
            self._session.credentials.tls,
            server_name=self._config.tls_server_name,
            deadline_seconds=self._deadline_seconds,
        )

    async def call(self, request: Request, *, deadline_seconds: float | None = None) -> bytes:
        """Send a request; return the body of a 2xx response. Raises KubeError.

        The deadline covers all attempts. A Retry-After of the server (429, 5xx) is applied with jitter while
        time is left. After a 401 with changed credentials, and after a broken connection, the request is sent
        again at once. This is safe because each write is fenced.
        """
        budget = deadline_seconds or self._deadline_seconds
        until = time.monotonic() + budget
        try:
            async with asyncio.timeout(budget):
                return await self._call_until(request, until)
        except TimeoutError as error:
            raise self._session.unreachable(request, f"no answer within {budget:g} s", error) from error

    @asynccontextmanager
    async def open_watch(self, request: Request, *, seconds: float) -> AsyncIterator[ReadLine]:
        """Open a watch; yield a function that reads its next line (b"" at the end). Both raise KubeError.

        It ends with Unreachable after `seconds`, or earlier if the peer acknowledges nothing.
        """
        async with AsyncExitStack() as connection:
            response = await self._open_watch(request, connection)
            # never released: the connection of a watch is not reused
            connection.callback(response.close)
            if response.status != 200:
                raise await self._refusal_of_watch(request, response)
            # One timer for the whole watch: a deadline on each read would cost more than decoding the event.
            end = asyncio.get_running_loop().call_later(seconds, response.close)
            connection.callback(end.cancel)
            yield lambda: self._read_line(request, response)

    @asynccontextmanager
    async def open_web_socket(self, request: Request, *, protocol: str) -> AsyncIterator[ReadMessage]:
        """Open a WebSocket; yield a function that reads a message (None at the end). Both raise KubeError."""
        try:
            async with open_web_socket(
                self._session, request, protocol=protocol, deadline_seconds=self._deadline_seconds
            ) as read_message:
                yield read_message
        except aiohttp.WSServerHandshakeError as error:
            raise await self._why_no_web_socket(request, error) from error

    async def _open_watch(self, request: Request, connection: AsyncExitStack) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._deadline_seconds)
        started, status = time.monotonic(), 0
        try:
            async with asyncio.timeout(self._deadline_seconds):
                await connection.enter_async_context(self._session.connection_for(request))
                response = await self._session.send(request, timeout)
            status = response.status
        except TimeoutError as error:
            raise self._session.unreachable(request, "no answer to the opening", error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._session.unreachable(request, describe_error(error), error) from error
        finally:
            self._observe(request.verb, request.resource, status, time.monotonic() - started)
        return response

    async def _why_no_web_socket(
        self, request: Request, refused: aiohttp.WSServerHandshakeError
    ) -> KubeError:  # fmt: skip
        """Return the rejection. aiohttp drops its text, so the request is repeated without an upgrade."""
        try:
            await self.call(request)
        except KubeError as error:
            if error.status == refused.status:
                return error
        text = f"no WebSocket ({refused.message})".encode()
        return error_from(refused.status, text, request=str(request))

    async def _read_line(self, request: Request, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readline(max_line_length=MAX_LINE_BYTES)
        except HttpProcessingError as error:
            raise ServerError(f"event beyond {MAX_LINE_BYTES} bytes", request=str(request)) from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # aiohttp raises RuntimeError if the connection was closed between two reads.
            what = "no end of the watch in time" if response.closed else describe_error(error)
            raise self._session.unreachable(request, what, error) from error

    async def _call_until(self, request: Request, until: float) -> bytes:
        again_at_once = True
        while True:
            try:
                return await self._attempt(request, until)
            except (TooManyRequests, ServerError) as error:
                requested = error.retry_after_seconds
                if requested is None or not await self._paused(requested, until):
                    raise
            except Unauthorized:
                if not again_at_once or not await self._renewed():
                    raise
                again_at_once = False
            except _ConnectionBroke as broke:
                if not again_at_once:
                    raise self._session.unreachable(
                        request, describe_error(broke.cause), broke.cause
                    ) from broke.cause
                again_at_once = False

    async def _renewed(self) -> bool:
        try:
            return await self._session.credentials.renew()
        except KubeConfigError:
            return False  # the 401 says more; the next request reports a failing plugin

    async def _paused(self, requested_seconds: float, until: float) -> bool:
        # Jitter, so that rejected clients do not all return together.
        pause = max(requested_seconds, _PAUSE_FLOOR_SECONDS) * (1.0 + 0.25 * self._jitter())
        if time.monotonic() + pause >= until:
            return False
        await asyncio.sleep(pause)
        return True

    async def _attempt(self, request: Request, until: float) -> bytes:
        started = time.monotonic()
        status = 0
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=max(0.001, until - started))
        try:
            async with (
                self._session.connection_for(request),
                await self._session.send(request, timeout) as response,
            ):
                status = response.status
                self.server_date = response.headers.get("Date", "")
                body = await read_body(request, response)
            if 200 <= status < 300:
                return body
            raise self._session.rejection(request, response, body)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError) as error:
            raise _ConnectionBroke(error) from error
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise self._session.unreachable(request, describe_error(error), error) from error
        finally:
            self._observe(request.verb, request.resource, status, time.monotonic() - started)

    async def _refusal_of_watch(self, request: Request, response: aiohttp.ClientResponse) -> KubeError:
        body = b""  # the status is enough
        with suppress(aiohttp.ClientError, OSError):  # a timeout is an OSError
            async with asyncio.timeout(self._deadline_seconds):
                body = await read_body(request, response)
        return self._session.rejection(request, response, body)


class _ConnectionBroke(Exception):
    """A connection ended before the response, as a kept-alive one does when the server restarts."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause
