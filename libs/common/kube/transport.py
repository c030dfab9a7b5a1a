"""One HTTP session to one API server: deadlines, requested retries, translated errors."""

import asyncio
import contextlib
import io
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec
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
from libs.common.kube.server_identity import ServerIdentity
from libs.common.kube.tls_handshake import fetch_server_identity

DEADLINE_SECONDS: Final = 15.0
# Maximum. Each costs a handshake and 0.3 MB of TLS buffers, and a thousand joining machines would use any
# number. With 24, an API server that needs 20 ms per write still gets more writes than it can store.
CONNECTIONS: Final = 24
_LINE_LIMIT: Final = 2**21  # bytes of one watch event: 1.5 MiB for an object in etcd, and its envelope
_PART_BYTES: Final = 2**16  # a larger body is sent in parts, so that other tasks run in between
_CLOSE_SECONDS: Final = 2.0  # for the peer's answer to a close frame
_PAUSE_FLOOR_SECONDS: Final = 0.25  # for a server that sends "Retry-After: 0"

# verb, resource with its subresource ("nodes/status"), HTTP status (0: none), seconds
RequestObserver = Callable[[str, str, int, float], None]
ReadLine = Callable[[], Awaitable[bytes]]
ReadMessage = Callable[[], Awaitable[bytes | None]]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request; verb and resource are those of Kubernetes, for metrics, audit and messages."""

    verb: str
    resource: str
    path: str
    method: str = "GET"
    query: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"
    name: str = ""
    max_bytes: int | None = None  # limit of a response that others write, such as a kubelet

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name}".rstrip()


class Transport:
    """The session: created on first use inside a running loop, closed by `close`."""

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
        self._credentials = Credentials(config)
        self._user_agent = user_agent
        self._deadline_seconds = deadline_seconds
        self._connections = connections
        self._observe = observe
        self._jitter = jitter
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
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
        return (self._credentials.problem,) if self._credentials.problem else ()

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def fetch_server_identity(self) -> ServerIdentity:
        """Return the names and addresses in the server's current certificate. Raises KubeError."""
        try:
            await self._credentials.refresh(time.monotonic())
        except KubeConfigError as error:
            raise Unauthorized(str(error)) from error
        return await fetch_server_identity(
            self._config.server,
            self._credentials.tls,
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
            raise self._unreachable(request, f"no answer within {budget:g} s", error) from error

    @asynccontextmanager
    async def open_watch(self, request: Request, *, seconds: float) -> AsyncIterator[ReadLine]:
        """Open a watch; yield a function that reads its next line (b"" at the end). Both raise KubeError.

        It ends with Unreachable after `seconds`, or earlier if the peer acknowledges nothing.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._deadline_seconds)
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_seconds):
                response = await self._send(request, timeout)
            self._observe(request.verb, request.resource, response.status, time.monotonic() - started)
        except TimeoutError as error:
            self._observe(request.verb, request.resource, 0, time.monotonic() - started)
            raise self._unreachable(request, "no answer to the opening", error) from error
        except (aiohttp.ClientError, OSError) as error:
            self._observe(request.verb, request.resource, 0, time.monotonic() - started)
            raise self._unreachable(request, describe_error(error), error) from error
        try:
            if response.status != 200:
                raise await self._refusal_of_watch(request, response)
            # One timer for the whole watch: a deadline on each read would cost more than decoding the event.
            end = asyncio.get_running_loop().call_later(seconds, response.close)
            try:
                yield lambda: self._read_line(request, response)
            finally:
                end.cancel()
        finally:
            response.close()  # never released: the connection of a watch is not reused

    @asynccontextmanager
    async def open_web_socket(self, request: Request, *, protocol: str) -> AsyncIterator[ReadMessage]:
        """Open a WebSocket; yield a function that reads a message (None at the end). Both raise KubeError."""
        try:
            async with asyncio.timeout(self._deadline_seconds):
                web_socket = await self._upgraded(request, protocol)
        except TimeoutError as error:
            raise self._unreachable(request, "no answer to the opening", error) from error
        except aiohttp.WSServerHandshakeError as error:
            raise await self._why_no_web_socket(request, error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(request, describe_error(error), error) from error
        try:
            yield lambda: _read_message(request, web_socket)
        finally:
            await _close_web_socket(web_socket)

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

    async def _upgraded(self, request: Request, protocol: str) -> aiohttp.ClientWebSocketResponse[bool]:
        try:
            await self._credentials.refresh(time.monotonic())
        except KubeConfigError as error:
            raise Unauthorized(str(error), request=str(request)) from error
        return await self._open_session().ws_connect(
            self._config.server + request.path,
            protocols=(protocol,),
            headers=self._credentials.headers,
            ssl=self._credentials.tls or True,
            server_hostname=self._config.tls_server_name or None,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
        )

    async def _read_line(self, request: Request, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readline(max_line_length=_LINE_LIMIT)
        except HttpProcessingError as error:
            raise ServerError(f"event beyond {_LINE_LIMIT} bytes", request=str(request)) from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # aiohttp raises RuntimeError if the connection was closed between two reads.
            what = "no end of the watch in time" if response.closed else describe_error(error)
            raise self._unreachable(request, what, error) from error

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
                    raise self._unreachable(
                        request, describe_error(broke.cause), broke.cause
                    ) from broke.cause
                again_at_once = False

    async def _renewed(self) -> bool:
        try:
            return await self._credentials.renew()
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
            async with await self._send(request, timeout) as response:
                status = response.status
                self.server_date = response.headers.get("Date", "")
                if 200 <= status < 300:
                    return await _body(request, response)
                raise await self._refusal(request, response)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError) as error:
            raise _ConnectionBroke(error) from error
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(request, describe_error(error), error) from error
        finally:
            self._observe(request.verb, request.resource, status, time.monotonic() - started)

    async def _send(self, request: Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        try:
            await self._credentials.refresh(time.monotonic())
        except KubeConfigError as error:
            raise Unauthorized(str(error), request=str(request)) from error
        if self._is_closed():
            raise _closed(request)
        headers = {"Accept": "application/json", **self._credentials.headers}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            return await self._open_session().request(
                request.method,
                self._config.server + request.path,
                params=request.query,
                data=_in_parts(request.body),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=self._credentials.tls or True,
                server_hostname=self._config.tls_server_name or None,
                read_bufsize=_LINE_LIMIT if request.verb == "watch" else 2**16,
            )
        except asyncio.CancelledError as error:
            # aiohttp's close cancels tasks that wait for a connection, although no caller cancelled them.
            if self._is_closed() and not _is_cancelled(asyncio.current_task()):
                raise _closed(request) from error
            raise

    async def _refusal_of_watch(self, request: Request, response: aiohttp.ClientResponse) -> KubeError:
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await self._refusal(request, response)
        except (TimeoutError, aiohttp.ClientError, OSError):
            return self._refused(request, response, b"")  # the status is enough

    async def _refusal(self, request: Request, response: aiohttp.ClientResponse) -> KubeError:
        return self._refused(request, response, await _body(request, response))

    def _refused(self, request: Request, response: aiohttp.ClientResponse, body: bytes) -> KubeError:
        error = error_from(
            response.status, body, request=str(request), retry_after=response.headers.get("Retry-After")
        )
        if isinstance(error, Unauthorized):
            hint = self._credentials.problem or "check that token or client certificate have not expired"
            error.args = (f"{error} ({self._config.source}: {hint})",)
        return error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._connections, keepalive_timeout=30.0, socket_factory=keepalive_socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self._user_agent},
            )
        return self._session

    def _is_closed(self) -> bool:
        return self._closed

    def _unreachable(self, request: Request, what: str, error: BaseException) -> Unreachable:
        reason = "Timeout" if isinstance(error, TimeoutError) else "Unreachable"
        where = f"{self._config.server} ({self._config.source})"
        return Unreachable(f"{where}: {what}", request=str(request), reason=reason)


async def _body(request: Request, response: aiohttp.ClientResponse) -> bytes:
    if request.max_bytes is None:
        return await response.read()
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > request.max_bytes:
            raise ServerError(f"the response exceeds {request.max_bytes} bytes", request=str(request))
    return bytes(body)


async def _read_message(request: Request, web_socket: aiohttp.ClientWebSocketResponse[bool]) -> bytes | None:
    message = await web_socket.receive()
    if message.type is aiohttp.WSMsgType.BINARY:
        return bytes(message.data)
    if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
        return None
    why = f"a message of type {message.type.name}"  # its content is not trusted
    if message.type is aiohttp.WSMsgType.ERROR:
        why = str(message.data)
    raise ServerError(f"WebSocket failed: {why}", request=str(request))


async def _close_web_socket(web_socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
    """Close the connection; abort it after _CLOSE_SECONDS, whatever the peer sends or does not read."""
    connection = web_socket.get_extra_info("socket")
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):  # aiohttp applies its own limit again after each message
            await web_socket.close()
    except TimeoutError:
        # aiohttp leaves the socket open until the peer has read all pending data.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _is_cancelled(task: "asyncio.Task[Any] | None") -> bool:
    return task is not None and task.cancelling() > 0


def _closed(request: Request) -> Unreachable:
    return Unreachable("the connection to the API server is closed", request=str(request))


class _ConnectionBroke(Exception):
    """A connection ended before the response, as a kept-alive one does when the server restarts."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _in_parts(body: bytes | None) -> bytes | io.BytesIO | None:
    return body if body is None or len(body) <= _PART_BYTES else io.BytesIO(body)
