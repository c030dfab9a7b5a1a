"""The health port is open to the whole network: no client may exhaust sockets or block other clients."""

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from libs.common.service.health import Readiness, make_health_application
from libs.common.service.listener import Limits, Listener, bind_sockets
from libs.common.service.serving_certificate import ServingCertificate
from libs.common.service.web_listener import WebListener
from libs.common.settings.process_settings import OPEN_PATHS
from libs.testbed.child_process import HANG_SECONDS
from tests.bus_actors import wait_until


def health_server(certificate: ServingCertificate | None, **options: Any) -> WebListener:
    return WebListener(make_health_application(Readiness(time.monotonic)), certificate, **options)


@pytest.fixture(params=["http", "https"])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """A server that keeps two connections at a time, and waits half a second for a request."""
    secure = request.param == "https"
    certificate = ServingCertificate(None, None, now=datetime.now(UTC)) if secure else None
    limits = Limits(connections=2, handshake_seconds=0.5, connection_seconds=1.0)
    server = health_server(certificate, limits=limits, header_seconds=0.5)
    yield await server.start("127.0.0.1", 0, flag="--secure-port")
    await server.stop()


async def is_alive(port: int) -> bool:
    async with aiohttp.ClientSession() as session:
        for scheme in ("http", "https"):
            try:
                async with session.get(f"{scheme}://127.0.0.1:{port}/livez", ssl=False) as answer:
                    return await answer.text() == "ok"
            except aiohttp.ClientError:
                continue
    return False


async def until_closed(port: int, sent: bytes) -> None:
    """Return when the server has closed the connection; its deadlines are far shorter than ours."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(HANG_SECONDS):
        try:
            while await reader.read(65536):
                pass
        except ConnectionError:
            pass  # reset is closed, too
    writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /metrics HT",
        b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        b"\x16\x03",
    ],
)
async def test_a_caller_who_stalls_is_let_go(port: int, sent: bytes):
    await until_closed(port, sent)
    await wait_until(lambda: is_alive(port))  # a busy machine may be one that stalls, too


async def test_more_callers_than_we_have_room_for_are_let_go_and_the_next_is_served(port: int):
    await asyncio.gather(*(until_closed(port, b"GET /livez HT") for _ in range(50)))
    await wait_until(lambda: is_alive(port))


async def test_every_path_is_open_to_every_caller():
    async with patient_server(connections=3) as port, aiohttp.ClientSession() as session:
        for path in OPEN_PATHS:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                assert answer.status in (200, 503), path  # 503: not ready


async def is_closed_by_the_server(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


@asynccontextmanager
async def patient_server(connections: int) -> AsyncIterator[int]:
    """The port of a server whose deadlines are far off: what it closes, it closes at the limit."""
    limits = Limits(connections=connections, connection_seconds=60)
    server = health_server(None, limits=limits, header_seconds=60)
    try:
        yield await server.start("127.0.0.1", 0, flag="--secure-port")
    finally:
        await server.stop()


async def test_at_the_limit_the_oldest_connection_of_the_source_with_the_most_is_closed():
    async with patient_server(connections=3) as port:
        quiet_reader, quiet = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.1", 0))
        loud = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(6)
        ]
        for reader, _ in loud[:4]:
            await is_closed_by_the_server(reader)
        for reader, writer in ((quiet_reader, quiet), *loud[4:]):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _, writer in ((quiet_reader, quiet), *loud):
            writer.close()


async def test_a_connection_serves_one_request():
    async with patient_server(connections=3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
        async with asyncio.timeout(HANG_SECONDS):
            answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        assert b"Connection: close" in answer
        writer.close()


@pytest.mark.parametrize("sent", ["<html>", "GET /livez HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n"])
async def test_a_request_that_cannot_be_read_is_not_logged(sent: str, caplog: pytest.LogCaptureFixture):
    async with patient_server(connections=3) as port:
        await until_closed(port, f"{sent}Content-Length: 7\r\n\r\nno gzip".encode())
    assert not caplog.messages


async def test_a_request_that_is_too_large_is_dropped():
    async with patient_server(connections=3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\n" + b"X-Large: " + b"x" * 2**17)
        async with asyncio.timeout(HANG_SECONDS):
            with contextlib.suppress(ConnectionError):
                assert b"200" not in await reader.read()
        writer.close()
        assert await is_alive(port)


class OutOfDescriptors(socket.socket):
    """A listening socket whose first accept fails."""

    failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.failed:
            self.failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Greets(asyncio.Protocol):
    """Says hello and ends."""

    def __init__(self, closed: asyncio.Event) -> None:
        self._closed = closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()


async def test_connections_are_accepted_again_after_the_descriptors_ran_out(caplog: pytest.LogCaptureFixture):
    listening = OutOfDescriptors()
    listening.setblocking(False)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    listener = Listener(Greets, None, Limits())
    listener.start([listening])
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    async with asyncio.timeout(HANG_SECONDS):
        assert await reader.read() == b"hello"
    assert "cannot accept connections, will retry" in caplog.messages
    writer.close()
    listener.close()
    await listener.abort()


async def test_no_socket_is_closed_while_its_transport_uses_it():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate = ServingCertificate(None, None, now=datetime.now(UTC))
    loop: Any = asyncio.get_running_loop()
    for steps in range(60):  # of the handshake; a new connection would get the descriptor
        listener = Listener(lambda closed: asyncio.Protocol(), certificate.context, Limits())
        sockets = await bind_sockets("127.0.0.1", 0)
        listener.start(sockets)
        where = sockets[0].getsockname()[:2]
        client = asyncio.create_task(asyncio.open_connection(*where, ssl=context))
        for _ in range(steps):
            await asyncio.sleep(0)
        transports = [each for each in loop._transports.values() if not each.is_closing()]
        listener.close()
        await listener.abort()
        left = [each for each in transports if not each.is_closing()]
        assert all(each.get_extra_info("socket").fileno() >= 0 for each in left)
        (result,) = await asyncio.gather(client, return_exceptions=True)
        if not isinstance(result, BaseException):
            result[1].transport.abort()
