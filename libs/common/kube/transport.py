"""One HTTP session to one API server with one identity: deadlines, requested retries, translated errors."""

import asyncio
import io
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from typing import Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from libs.common.kube.credentials import Credentials
from libs.common.kube.errors import (
    KubeError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_from,
)
from libs.common.kube.keepalive_socket import describe_error, keepalive_socket
from libs.common.kube.kube_config import KubeConfig, KubeConfigError
from libs.common.kube.request import Request
from libs.common.kube.request_queue import RequestQueue

DEADLINE_SECONDS: Final = 15.0
# Maximum. Each costs a handshake and 0.3 MB of TLS buffers, and a thousand joining machines would use any
# number. With 24, an API server that needs 20 ms per write still gets more writes than it can store.
CONNECTIONS: Final = 24
_MAX_LINE_BYTES: Final = 2**21  # one watch event: 1.5 MiB for an object in etcd, and its envelope
_PART_BYTES: Final = 2**16  # a larger body is sent in parts, so that other tasks run in between
_PAUSE_FLOOR_SECONDS: Final = 0.25  # for a server that sends "Retry-After: 0"

# verb, resource with its subresource ("nodes/status"), HTTP status (0: none), seconds
RequestObserver = Callable[[str, str, int, float], None]
ReadLine = Callable[[], Awaitable[bytes]]


@dataclass(eq=False, repr=False)  # a text of it would show the environment of a credential plugin
class Transport:
    """Sends requests until they succeed, are rejected or reach their deadline.

    It reads the credentials at once, and connects on first use inside a running loop. Raises KubeConfigError.
    """

    config: KubeConfig
    _: KW_ONLY
    user_agent: str
    deadline_seconds: float = DEADLINE_SECONDS
    connections: int = CONNECTIONS
    observe: RequestObserver = lambda verb, resource, status, seconds: None
    jitter: Callable[[], float] = random.random  # uniform in [0, 1)

    def __post_init__(self) -> None:
        self.credentials = Credentials(self.config)
        self.server_date = ""  # the server's clock in its last response, in HTTP format
        self.queue = RequestQueue(self.connections)
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def close(self) -> None:
        """Close every connection; waiting requests end with Unreachable."""
        self._is_closed = True
        self.queue.close()
        if self._session is not None:
            await self._session.close()

    # ---- requests

    async def call(self, request: Request, *, deadline_seconds: float | None = None) -> bytes:
        """Send a request; return the body of a 2xx response. Raises KubeError.

        The deadline covers all attempts. A Retry-After of the server (429, 5xx) is applied with jitter while
        time is left. After a 401 with changed credentials, and after a broken connection, the request is sent
        again at once. This is safe because each write is fenced.
        """
        budget = deadline_seconds or self.deadline_seconds
        until = time.monotonic() + budget
        try:
            async with asyncio.timeout(budget):
                return await self._call_until(request, until)
        except TimeoutError as error:
            raise self._unreachable(request, error, f"no answer within {budget:g} s") from error

    async def _call_until(self, request: Request, until: float) -> bytes:
        again_at_once = True
        while True:
            try:
                return await self._attempt(request, until)
            except (TooManyRequests, ServerError) as error:
                requested = error.retry_after_seconds if request.is_postponable else None
                if requested is None or not await _paused(requested, until, self.jitter()):
                    raise
            except Unauthorized:
                if not again_at_once or not await self._renewed():
                    raise
                again_at_once = False
            except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError) as error:
                # A connection ended before the response, as a kept-alive one does when the server restarts.
                if not again_at_once:
                    raise self._unreachable(request, error) from error
                again_at_once = False

    async def _attempt(self, request: Request, until: float) -> bytes:
        started = time.monotonic()
        status = 0
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=max(0.001, until - started))
        try:
            async with (
                self.queue.slot(is_urgent=request.is_urgent),
                await self._send(request, timeout) as response,
            ):
                status = response.status
                self.server_date = response.headers.get("Date", "")
                body = await _read_body(request, response)
            if 200 <= status < 300:
                return body
            raise self._rejection(request, response, body)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError, TimeoutError):
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(request, error) from error
        finally:
            self.observe(request.verb, request.resource, status, time.monotonic() - started)

    async def _send(self, request: Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Send the request and return the response with any status. Raises KubeError or aiohttp's errors."""
        session = await self.open_session(request)
        headers = {"Accept": "application/json", **self.credentials.headers}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            return await session.request(
                request.method,
                self.config.server + request.path,
                params=request.query,
                data=_split_body(request.body),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=self.credentials.tls or True,
                server_hostname=self.config.tls_server_name or None,
                proxy=self.config.proxy_url or None,
                read_bufsize=_MAX_LINE_BYTES if request.verb == "watch" else 2**16,
            )
        except asyncio.CancelledError as error:
            # aiohttp's close cancels tasks that resolve a name, although no caller cancelled them.
            task = asyncio.current_task()
            if self._closed() and not (task and task.cancelling()):
                raise _closed(request) from error
            raise

    async def _renewed(self) -> bool:
        try:
            return await self.credentials.renew()
        except KubeConfigError:
            return False  # the 401 says more; the next request reports a failing plugin

    # ---- watches

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

    async def _open_watch(self, request: Request, connection: AsyncExitStack) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.deadline_seconds)
        started, status = time.monotonic(), 0
        try:
            async with asyncio.timeout(self.deadline_seconds):
                await connection.enter_async_context(self.queue.slot(is_urgent=request.is_urgent))
                response = await self._send(request, timeout)
            status = response.status
        except (aiohttp.ClientError, OSError) as error:
            raise self.not_opened(request, error) from error
        finally:
            self.observe(request.verb, request.resource, status, time.monotonic() - started)
        return response

    async def _refusal_of_watch(self, request: Request, response: aiohttp.ClientResponse) -> KubeError:
        body = b""  # the status is enough
        with suppress(aiohttp.ClientError, OSError):  # a timeout is an OSError
            async with asyncio.timeout(self.deadline_seconds):
                body = await _read_body(request, response)
        return self._rejection(request, response, body)

    async def _read_line(self, request: Request, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readline(max_line_length=_MAX_LINE_BYTES)
        except HttpProcessingError as error:
            raise ServerError(f"event beyond {_MAX_LINE_BYTES} bytes", request=str(request)) from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # aiohttp raises RuntimeError if the connection was closed between two reads.
            what = "no end of the watch in time" if response.closed else ""
            raise self._unreachable(request, error, what) from error

    # ---- session and errors

    async def open_session(self, request: object) -> aiohttp.ClientSession:
        """Return the session, with current credentials. Raises Unauthorized or Unreachable."""
        try:
            await self.credentials.refresh(time.monotonic())
        except KubeConfigError as error:
            raise Unauthorized(str(error), request=str(request)) from error
        if self._closed():
            raise _closed(request)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # the queue limits them
                    keepalive_timeout=30.0,
                    socket_factory=keepalive_socket,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self.user_agent},
            )
        return self._session

    def _closed(self) -> bool:
        return self._is_closed  # a call, because mypy does not expect a change during an await

    def _rejection(self, request: Request, response: aiohttp.ClientResponse, body: bytes) -> KubeError:
        """Return the error of a response that is not a success."""
        error = error_from(
            response.status, body, request=str(request), retry_after=response.headers.get("Retry-After")
        )
        if isinstance(error, Unauthorized):
            hint = self.credentials.problem or "check that token or client certificate have not expired"
            error.args = (f"{error} ({self.config.source}: {hint})",)
        return error

    def not_opened(self, request: Request, error: Exception) -> Unreachable:
        """Return the error of a watch or WebSocket that could not be opened."""
        what = "no answer to the opening" if isinstance(error, TimeoutError) else ""
        return self._unreachable(request, error, what)

    def _unreachable(self, request: Request, error: Exception, what: str = "") -> Unreachable:
        """Return the error of a request without a response; it names the server.

        `error` loses its frames: those of aiohttp refer to it. In this cycle, the TLS state of a failed
        handshake (0.1 MB) would stay until a garbage collection.
        """
        reason = "Timeout" if isinstance(error, TimeoutError) else "Unreachable"
        where = f"{self.config.server} ({self.config.source})"
        error.with_traceback(None)
        return Unreachable(f"{where}: {what or describe_error(error)}", request=str(request), reason=reason)


async def _read_body(request: Request, response: aiohttp.ClientResponse) -> bytes:
    """Return the whole body. Raises ServerError beyond the request's limit, or aiohttp's errors."""
    if request.max_bytes is None:
        return await response.read()
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > request.max_bytes:
            raise ServerError(f"the response exceeds {request.max_bytes} bytes", request=str(request))
    return bytes(body)


async def _paused(requested_seconds: float, until: float, jitter: float) -> bool:
    """Wait as the server requested; return False at once if that takes too long."""
    # Jitter, so that rejected clients do not all return together.
    pause = max(requested_seconds, _PAUSE_FLOOR_SECONDS) * (1.0 + 0.25 * jitter)
    if time.monotonic() + pause >= until:
        return False
    await asyncio.sleep(pause)
    return True


def _closed(request: object) -> Unreachable:
    return Unreachable("the connection to the API server is closed", request=str(request))


def _split_body(body: bytes | None) -> bytes | io.BytesIO | None:
    return body if body is None or len(body) <= _PART_BYTES else io.BytesIO(body)
