"""Links of processes pass everything, and each fault does what it says, also to open connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.links import (
    BLACK_HOLE,
    CUT,
    HEALTHY,
    FaultProxy,
    Link,
    Links,
    LinkState,
    LinkTarget,
)
from tests.tcp_server import serve_tcp

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SHORT = 0.1


class EchoServer:
    """Returns every byte, and records where its connections come from."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.peers: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers.append(writer.get_extra_info("peername")[0])
        while data := await reader.read(65536):
            self.received += data
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def echo() -> AsyncIterator[tuple[EchoServer, int]]:
    echo = EchoServer()
    async with serve_tcp(echo.serve) as port:
        yield echo, port


@pytest.fixture
async def proxy(echo: tuple[EchoServer, int]) -> AsyncIterator[FaultProxy]:
    async with FaultProxy.start(echo[1], source="127.0.0.9") as proxy:
        yield proxy


@asynccontextmanager
async def connected(proxy: FaultProxy) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(connection: Connection, data: bytes, seconds: float = 10.0) -> bytes:
    reader, writer = connection
    writer.write(data)
    async with asyncio.timeout(seconds):
        await writer.drain()
        return await reader.readexactly(len(data))


async def is_ended(connection: Connection) -> bool:
    try:
        async with asyncio.timeout(10):
            return not await connection[0].read(1)
    except OSError:
        return True


async def test_a_cut_ends_open_connections_and_new_ones_until_it_is_healed(proxy: FaultProxy):
    async with connected(proxy) as connection:
        assert await ask(connection, b"before") == b"before"
        proxy.set_state(CUT)
        assert await is_ended(connection)
    async with connected(proxy) as connection:
        assert await is_ended(connection)
    proxy.set_state(HEALTHY)
    async with connected(proxy) as connection:
        assert await ask(connection, b"after") == b"after"


async def test_blocked_bytes_arrive_in_order_once_nothing_blocks_them(
    proxy: FaultProxy, echo: tuple[EchoServer, int]
):
    async with connected(proxy) as connection:
        assert await ask(connection, b"1") == b"1"
        proxy.set_state(BLACK_HOLE)
        with pytest.raises(TimeoutError):
            await ask(connection, b"2", SHORT)
        connection[1].write(b"3")
        assert bytes(echo[0].received) == b"1"
        proxy.set_state(HEALTHY)
        async with asyncio.timeout(10):
            assert await connection[0].readexactly(2) == b"23"


async def test_a_one_way_link_carries_requests_and_no_answers(
    proxy: FaultProxy, echo: tuple[EchoServer, int]
):
    async with connected(proxy) as connection:
        assert await ask(connection, b"a") == b"a"
        proxy.set_state(LinkState(blocked=("to-client",)))
        with pytest.raises(TimeoutError):
            await ask(connection, b"b", SHORT)
        assert bytes(echo[0].received) == b"ab"


async def test_a_delay_counts_in_each_direction(proxy: FaultProxy):
    async with connected(proxy) as connection:
        assert await ask(connection, b"a") == b"a"
        proxy.set_state(LinkState(delay_seconds=SHORT))
        clock = asyncio.get_running_loop().time
        begun = clock()
        assert await ask(connection, b"b") == b"b"
        assert clock() - begun >= 2 * SHORT


@pytest.fixture
async def links() -> AsyncIterator[Links]:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"answer")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    target = LinkTarget(server.sockets[0].getsockname()[1])
    targets: dict[Link, LinkTarget] = {"nats": target, "api": target, "talos": target, "collector": target}
    async with server, Links.start(["csr", "metadata"], targets) as started:
        yield started


async def is_healthy(links: Links, link: Link, process: str) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", links.proxies[link][process].port)
    try:
        return await reader.read() == b"answer"
    except ConnectionError:
        return False
    finally:
        writer.close()


async def test_a_link_of_one_process_or_of_all_is_cut_and_healed(links: Links):
    links.set_state("nats", CUT, "csr")
    assert not await is_healthy(links, "nats", "csr")
    assert await is_healthy(links, "nats", "metadata")
    assert await is_healthy(links, "api", "csr")
    links.set_state("nats", CUT)
    assert not await is_healthy(links, "nats", "metadata")
    links.set_state("nats", HEALTHY)
    assert await is_healthy(links, "nats", "csr")
    assert await is_healthy(links, "nats", "metadata")
