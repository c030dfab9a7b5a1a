"""Opens, reads and closes WebSockets to the API server."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import aiohttp

from libs.common.kube.errors import ServerError
from libs.common.kube.http_session import HttpSession
from libs.common.kube.keepalive_socket import describe_error
from libs.common.kube.request import Request

_CLOSE_SECONDS: Final = 2.0  # for the peer's answer to a close frame

ReadMessage = Callable[[], Awaitable[bytes | None]]


@asynccontextmanager
async def open_web_socket(
    session: HttpSession, request: Request, *, protocol: str, deadline_seconds: float
) -> AsyncIterator[ReadMessage]:
    """Open a WebSocket; yield a function that reads a message (None at the end).

    Both raise KubeError. A response that rejects the upgrade raises aiohttp's WSServerHandshakeError.
    """
    async with AsyncExitStack() as connection:
        try:
            async with asyncio.timeout(deadline_seconds):
                await connection.enter_async_context(session.connection_for(request))
                web_socket = await session.upgrade(request, protocol=protocol, close_seconds=_CLOSE_SECONDS)
        except TimeoutError as error:
            raise session.unreachable(request, "no answer to the opening", error) from error
        except aiohttp.WSServerHandshakeError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise session.unreachable(request, describe_error(error), error) from error
        try:
            yield lambda: _read_message(request, web_socket)
        finally:
            await _close(web_socket)


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


async def _close(web_socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
    """Close the connection; abort it after _CLOSE_SECONDS, whatever the peer sends or does not read."""
    connection = web_socket.get_extra_info("socket")
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):  # aiohttp applies its own limit again after each message
            await web_socket.close()
    except TimeoutError:
        # aiohttp leaves the socket open until the peer has read all pending data.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
