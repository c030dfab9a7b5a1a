"""Runs a command in a container of a pod, as `kubectl exec` does: WebSocket, v4.channel.k8s.io."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError, ServerError, Status, Unreachable, error_from
from libs.common.kube.request import Request
from libs.common.kube.transport import Transport

# The API server forwards this protocol to the kubelet. It terminates v5 itself and uses another one there.
PROTOCOL: Final = "v4.channel.k8s.io"
_OUT, _ERR, _STATUS = 1, 2, 3  # channels: the first byte of each message
_MOST_BYTES: Final = 64 * 2**20
_QUOTED: Final = 300  # characters of output that an error quotes
_DIGITS: Final = 10  # of an exit status; the kubelet is not trusted
_CLOSE_SECONDS: Final = 2.0  # for the peer's answer to a close frame

_WebSocket = aiohttp.ClientWebSocketResponse[bool]


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """The exit status and output of a command."""

    exit_status: int
    stdout: bytes
    stderr: bytes


async def exec_in_pod(
    api: KubeApi,
    *,
    namespace: str,
    pod: str,
    container: str,
    command: tuple[str, ...],
    timeout_seconds: float,
) -> ExecResult:
    """Run a command without input until it ends. Raises KubeError; Unreachable also after the timeout."""
    query = urlencode(
        [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", c) for c in command)]
    )
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/exec?{query}"
    request = Request(verb="create", resource="pods/exec", name=f"{namespace}/{pod}", path=path)
    output = {_OUT: bytearray(), _ERR: bytearray(), _STATUS: bytearray()}
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            _open_web_socket(api.transport, request) as web_socket,
        ):
            while (message := await _read_message(request, web_socket)) is not None:
                if message and message[0] in output:
                    output[message[0]] += message[1:]
                if sum(map(len, output.values())) > _MOST_BYTES:
                    text = f"the output of {command[0]} exceeds {_MOST_BYTES} bytes"
                    raise ServerError(text, request=str(request))
    except TimeoutError as error:
        text = f"{' '.join(command)} did not end within {timeout_seconds:g} s"
        raise Unreachable(text, request=str(request), reason="Timeout") from error
    return ExecResult(
        exit_status=_exit_status(bytes(output[_STATUS]), request, bytes(output[_ERR])),
        stdout=bytes(output[_OUT]),
        stderr=bytes(output[_ERR]),
    )


@asynccontextmanager
async def _open_web_socket(transport: Transport, request: Request) -> AsyncIterator[_WebSocket]:
    """Open a WebSocket, and close it at the end. Raises KubeError."""
    try:
        async with AsyncExitStack() as connection:
            web_socket = await _connect(transport, request, connection)
            connection.push_async_callback(_close, web_socket)
            yield web_socket
    except aiohttp.WSServerHandshakeError as error:  # now that its connection is free
        raise await _why_no_web_socket(transport, request, error) from error


async def _connect(transport: Transport, request: Request, connection: AsyncExitStack) -> _WebSocket:
    config, credentials = transport.config, transport.credentials
    try:
        async with asyncio.timeout(transport.deadline_seconds):
            await connection.enter_async_context(transport.queue.slot())
            session = await transport.open_session(request)
            return await session.ws_connect(
                config.server + request.path,
                protocols=(PROTOCOL,),
                headers=credentials.headers,
                ssl=credentials.tls or True,
                server_hostname=config.tls_server_name or None,
                proxy=config.proxy_url or None,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
            )
    except aiohttp.WSServerHandshakeError:
        raise
    except (aiohttp.ClientError, OSError) as error:
        raise transport.not_opened(request, error) from error


async def _why_no_web_socket(
    transport: Transport, request: Request, refused: aiohttp.WSServerHandshakeError
) -> KubeError:
    """Return the rejection. aiohttp drops its text, so the request is repeated without an upgrade."""
    try:
        await transport.call(request)
    except KubeError as error:
        if error.status == refused.status:
            return error
    text = f"no WebSocket ({refused.message})".encode()
    return error_from(refused.status, text, request=str(request))


async def _read_message(request: Request, web_socket: _WebSocket) -> bytes | None:
    """Return the next message, None at the end. Raises ServerError."""
    message = await web_socket.receive()
    if message.type is aiohttp.WSMsgType.BINARY:
        return bytes(message.data)
    if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
        return None
    why = f"a message of type {message.type.name}"  # its content is not trusted
    if message.type is aiohttp.WSMsgType.ERROR:
        why = str(message.data)
    raise ServerError(f"WebSocket failed: {why}", request=str(request))


async def _close(web_socket: _WebSocket) -> None:
    """Close the connection; abort it after _CLOSE_SECONDS, whatever the peer sends or does not read."""
    connection = web_socket.get_extra_info("socket")
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):  # aiohttp applies its own limit again after each message
            await web_socket.close()
    except TimeoutError:
        # aiohttp leaves the socket open until the peer has read all pending data.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _exit_status(data: bytes, request: Request, output: bytes) -> int:
    """Return the exit status. Raises KubeError if the command did not run or its end is unknown."""
    try:
        status = msgspec.json.decode(data, type=Status)
    except JSON_ERRORS as error:
        tail = output[-_QUOTED:].decode(errors="replace").strip()
        text = f"the connection ended before the command did{': ' + tail if tail else ''}"
        raise Unreachable(text, request=str(request), reason="Unreachable") from error
    if status.status == "Success":
        return 0
    for cause in (status.details and status.details.causes) or ():
        code = cause.message
        if cause.reason == "ExitCode" and code.isascii() and code.isdigit() and len(code) <= _DIGITS:
            return int(code)
    why = status.message or status.reason or "the command did not run"
    raise ServerError(why[:_QUOTED], request=str(request))
