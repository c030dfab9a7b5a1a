"""The connections to one API server with one identity."""

import asyncio
import io
import time
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import aiohttp

from libs.common.kube.credentials import Credentials
from libs.common.kube.errors import KubeError, ServerError, Unauthorized, Unreachable, error_from
from libs.common.kube.keepalive_socket import keepalive_socket
from libs.common.kube.kube_config import KubeConfig, KubeConfigError
from libs.common.kube.request import Request
from libs.common.kube.request_queue import RequestQueue

MAX_LINE_BYTES: Final = 2**21  # one watch event: 1.5 MiB for an object in etcd, and its envelope
_PART_BYTES: Final = 2**16  # a larger body is sent in parts, so that other tasks run in between


class HttpSession:
    """Sends requests with the current credentials; connects on first use inside a running loop."""

    def __init__(self, config: KubeConfig, *, user_agent: str, connections: int) -> None:
        """Read the credentials. Raises KubeConfigError."""
        self.credentials = Credentials(config)
        self._config = config
        self._user_agent = user_agent
        self._queue = RequestQueue(connections)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        """Close every connection; waiting requests end with Unreachable."""
        self._closed = True
        self._queue.close()
        if self._session is not None:
            await self._session.close()

    def connection_for(self, request: Request) -> AbstractAsyncContextManager[None]:
        """Wait until a connection is free; occupy it until the caller has read the response."""
        return self._queue.slot(is_urgent=request.is_urgent)

    async def refresh_credentials(self, request: Request | None = None) -> None:
        """Renew what has changed or is about to expire. Raises Unauthorized."""
        try:
            await self.credentials.refresh(time.monotonic())
        except KubeConfigError as error:
            raise Unauthorized(str(error), request=str(request or "")) from error

    async def send(self, request: Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Send the request and return the response with any status. Raises KubeError or aiohttp's errors."""
        await self.refresh_credentials(request)
        session = self._open_session(request)
        headers = {"Accept": "application/json", **self.credentials.headers}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            return await session.request(
                request.method,
                self._config.server + request.path,
                params=request.query,
                data=_split_body(request.body),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=self.credentials.tls or True,
                server_hostname=self._config.tls_server_name or None,
                proxy=self._config.proxy_url or None,
                read_bufsize=MAX_LINE_BYTES if request.verb == "watch" else 2**16,
            )
        except asyncio.CancelledError as error:
            # aiohttp's close cancels tasks that resolve a name, although no caller cancelled them.
            if self._is_closed() and not _is_cancelled(asyncio.current_task()):
                raise _closed(request) from error
            raise

    async def upgrade(
        self, request: Request, *, protocol: str, close_seconds: float
    ) -> aiohttp.ClientWebSocketResponse[bool]:
        """Open a WebSocket; `close_seconds` limits its end. Raises KubeError or aiohttp's errors."""
        await self.refresh_credentials(request)
        return await self._open_session(request).ws_connect(
            self._config.server + request.path,
            protocols=(protocol,),
            headers=self.credentials.headers,
            ssl=self.credentials.tls or True,
            server_hostname=self._config.tls_server_name or None,
            proxy=self._config.proxy_url or None,
            timeout=aiohttp.ClientWSTimeout(ws_close=close_seconds),
        )

    def rejection(self, request: Request, response: aiohttp.ClientResponse, body: bytes) -> KubeError:
        """Return the error of a response that is not a success."""
        error = error_from(
            response.status, body, request=str(request), retry_after=response.headers.get("Retry-After")
        )
        if isinstance(error, Unauthorized):
            hint = self.credentials.problem or "check that token or client certificate have not expired"
            error.args = (f"{error} ({self._config.source}: {hint})",)
        return error

    def unreachable(self, request: Request, what: str, error: BaseException) -> Unreachable:
        """Return the error of a request without a response; it names the server.

        `error` loses its frames: those of aiohttp refer to it. In this cycle, the TLS state of a failed
        handshake (0.1 MB) would stay until a garbage collection.
        """
        reason = "Timeout" if isinstance(error, TimeoutError) else "Unreachable"
        where = f"{self._config.server} ({self._config.source})"
        error.with_traceback(None)
        return Unreachable(f"{where}: {what}", request=str(request), reason=reason)

    def _open_session(self, request: Request) -> aiohttp.ClientSession:
        if self._is_closed():
            raise _closed(request)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # the queue limits them
                    keepalive_timeout=30.0,
                    socket_factory=keepalive_socket,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self._user_agent},
            )
        return self._session

    def _is_closed(self) -> bool:
        return self._closed


async def read_body(request: Request, response: aiohttp.ClientResponse) -> bytes:
    """Return the whole body. Raises ServerError beyond the request's limit, or aiohttp's errors."""
    if request.max_bytes is None:
        return await response.read()
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > request.max_bytes:
            raise ServerError(f"the response exceeds {request.max_bytes} bytes", request=str(request))
    return bytes(body)


def _is_cancelled(task: "asyncio.Task[Any] | None") -> bool:
    return task is not None and task.cancelling() > 0


def _closed(request: Request) -> Unreachable:
    return Unreachable("the connection to the API server is closed", request=str(request))


def _split_body(body: bytes | None) -> bytes | io.BytesIO | None:
    return body if body is None or len(body) <= _PART_BYTES else io.BytesIO(body)
