"""Services run on uvloop: what our adapters take for granted of a loop holds there, too."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlparse

import pytest
import uvloop

from libs.common.bus.nats.client import ConnectionTransport
from libs.common.kube.errors import Unreachable
from libs.common.kube.kube_config import KubeConfig
from libs.common.kube.request import Request
from libs.common.kube.transport import Transport
from libs.common.service.serving_certificate import ServingCertificate
from libs.talos.bounded_protocol import BoundedProtocol
from libs.testbed.child_process import HANG_SECONDS
from tests.tcp_server import serve_tcp


def on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work, HANG_SECONDS))


def test_a_connection_to_a_machine_notices_a_dead_peer():
    on_uvloop(_connects_with_keepalive())


async def _connects_with_keepalive() -> None:
    async with _listener() as port:
        loop = asyncio.get_running_loop()
        transport, http = await loop.create_connection(BoundedProtocol, "127.0.0.1", port)
        raw = transport.get_extra_info("socket")
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
        http.close("enough")
        await http.lost.wait()


@asynccontextmanager
async def _listener(tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def until_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serve_tcp(until_the_end, tls=tls) as port:
        yield port


async def _frees_tls_state(connect: Callable[[int], Awaitable[None]]) -> None:
    certificate = ServingCertificate(None, None, now=datetime.now(UTC))
    async with _listener(certificate.context) as port:
        before = _list_client_tls()
        gc.disable()
        try:
            for _ in range(3):
                await connect(port)
            await asyncio.sleep(0)  # the event loop closes the last socket
            assert [each for each in _list_client_tls() if each not in before] == []
        finally:
            gc.enable()


def _list_client_tls() -> list[ssl.SSLObject]:
    """The TLS states of clients in this process."""
    found = [each for each in gc.get_objects() if isinstance(each, ssl.SSLObject)]
    return [each for each in found if not each.server_side]


async def _connect_to_machine(port: int) -> None:
    transport, http = await asyncio.get_running_loop().create_connection(
        BoundedProtocol, "127.0.0.1", port, ssl=ssl._create_unverified_context()
    )
    assert transport.get_extra_info("ssl_object")
    http.close("enough")
    await http.lost.wait()


async def _connect_to_nats(port: int) -> None:
    transport = ConnectionTransport(encrypted=True)
    _kept_by_clients.append(transport)
    await transport.connect(urlparse(f"tls://127.0.0.1:{port}"), 65536, 5)
    await transport.connect_tls("127.0.0.1", ssl._create_unverified_context(), 65536, 5)
    reading = asyncio.create_task(transport.read(65536))
    await asyncio.sleep(0)  # the task waits for bytes
    transport.close()
    assert await reading == b""
    assert transport.at_eof()


_kept_by_clients: list[ConnectionTransport] = []  # nats-py's client is in reference cycles


async def _call_untrusted_kubernetes(port: int) -> None:
    server = KubeConfig(server=f"https://127.0.0.1:{port}", source="a test")
    kube = Transport(server, user_agent="a test")
    with pytest.raises(Unreachable, match=r"certificate not trusted .*check certificate-authority"):
        await kube.call(Request(verb="list", resource="nodes", path="/api/v1/nodes"))
    await kube.close()


@pytest.mark.parametrize("connect", [_connect_to_machine, _call_untrusted_kubernetes, _connect_to_nats])
def test_the_tls_state_of_a_closed_connection_is_freed_without_a_garbage_collection(
    connect: Callable[[int], Awaitable[None]],
):
    """The connection to the API server ends in a failed handshake."""
    on_uvloop(_frees_tls_state(connect))
