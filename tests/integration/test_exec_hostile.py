"""Running in a pod whose kubelet is hostile: what it sends reaches us as it is, through the API server."""

import asyncio
import base64
import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Invalid, KubeError, ServerError, Unreachable
from libs.common.kube.pod_exec import PROTOCOL, ExecResult, exec_in_pod
from libs.common.kube.request import Request
from tests.kube_loopback import LoopbackServer, open_api
from tests.tcp_server import serve_tcp

Say = Callable[[web.WebSocketResponse], Awaitable[None]]


def kubelet(say: Say) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=[PROTOCOL])
        await socket.prepare(request)
        await say(socket)
        return socket

    return answer


async def run_true(api: KubeApi, seconds: float = 60.0) -> ExecResult:
    return await exec_in_pod(
        api, namespace="ccm", pod="watcher", container="watcher", command=("true",), timeout_seconds=seconds
    )


async def ran(server: LoopbackServer, folder: Path, say: Say) -> ExecResult:
    server.answer = kubelet(say)
    async with open_api(server.url, folder) as api:
        return await run_true(api)


@pytest.mark.parametrize(
    "status",
    [
        b'{"x":' + b"[" * 100_000,
        b'{"status":"\xff"}',
        b'{"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"' + b"1" * 5000 + b'"}]}}',
        b"[]",
    ],
    ids=["deep", "no text", "a large number", "no object"],
)
async def test_a_status_that_is_none_is_an_error_of_the_api(
    server: LoopbackServer, tmp_path: Path, status: bytes
):
    async def say(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x03" + status)
        await socket.close()

    with pytest.raises(KubeError):
        await ran(server, tmp_path, say)


async def test_of_a_reason_without_end_an_error_repeats_the_beginning(server: LoopbackServer, tmp_path: Path):
    async def say(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b'\x03{"status":"Failure","message":"' + b"no " * 300_000 + b'"}')
        await socket.close()

    with pytest.raises(ServerError, match="no no no") as refused:
        await ran(server, tmp_path, say)
    assert len(str(refused.value)) < 500


async def test_who_says_more_than_one_can_hold_is_left_at_once(server: LoopbackServer, tmp_path: Path):
    async def say(socket: web.WebSocketResponse) -> None:
        while True:
            await socket.send_bytes(b"\x01" + b"x" * 2**20)

    with pytest.raises(ServerError, match="the output of true exceeds"):
        await ran(server, tmp_path, say)


async def test_what_no_kubelet_says_is_named_and_not_repeated(server: LoopbackServer, tmp_path: Path):
    async def say(socket: web.WebSocketResponse) -> None:
        await socket.send_str("\x1b[2J" * 1000)
        while True:  # endless output: a close that waits for the end would hang
            await socket.send_bytes(b"\x01x")
            await asyncio.sleep(0.05)

    with pytest.raises(ServerError, match="a message of type TEXT"):
        await ran(server, tmp_path, say)


async def only_asks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Whether we are there, again and again; reads none of our answers, until nothing more can be sent."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    key = re.search(r"(?i)sec-websocket-key: (\S+)", head)
    assert key
    digest = hashlib.sha1(key[1].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    told = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Protocol": PROTOCOL,
        "Sec-WebSocket-Accept": base64.b64encode(digest).decode(),
    }
    lines = ["HTTP/1.1 101 Switching Protocols", *(f"{name}: {value}" for name, value in told.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    with contextlib.suppress(OSError):
        while True:
            writer.write((b"\x89\x7d" + b"x" * 125) * 1000)
            await writer.drain()


async def test_a_server_that_reads_nothing_gets_its_connection_aborted(tmp_path: Path):
    ended = asyncio.Event()

    async def kubelet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await only_asks(reader, writer)
        finally:
            ended.set()

    async with serve_tcp(kubelet) as port, open_api(f"http://127.0.0.1:{port}", tmp_path) as api:
        with pytest.raises(Unreachable, match="did not end within 1 s"):
            await run_true(api, seconds=1.0)
        # A close that only waits leaves the connection to the kernel, which keeps it for 20 s.
        await asyncio.wait_for(ended.wait(), 15)


async def test_an_answer_that_others_write_is_read_no_further_than_asked(
    server: LoopbackServer, tmp_path: Path
):
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=200 if request.path == "/well" else 502)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 2**16)

    server.answer = endless
    async with open_api(server.url, tmp_path) as api:
        for path in ("/well", "/ill"):
            request = Request(verb="get", resource="nodes/proxy", path=path, max_bytes=2**20)
            with pytest.raises(ServerError, match="exceeds 1048576 bytes"):
                await api.transport.call(request, deadline_seconds=60)


async def test_a_refusal_in_no_known_encoding_is_told(server: LoopbackServer, tmp_path: Path):
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=400, body=b'{"message":"\xff"}', content_type="application/json")

    server.answer = refuse
    async with open_api(server.url, tmp_path) as api:
        with pytest.raises(Invalid):
            await api.transport.call(Request(verb="get", resource="nodes/proxy", path="/"))
