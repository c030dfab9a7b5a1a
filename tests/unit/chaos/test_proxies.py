"""Proxies of chaos forward everything, and each fault does what it says, also to open connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.kubelets import MERGE
from libs.testbed.sim_apiserver.faults import (
    ConflictFault,
    EmptyClose,
    ExpiredFault,
    HalfOpenFault,
    TooManyRequestsFault,
)
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.bus_actors import wait_until
from tests.chaos.api_proxy import ApiProxy
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

NODES = "/api/v1/nodes"


@pytest.fixture
async def proxy(simulated: SimApiServer) -> AsyncIterator[ApiProxy]:
    async with ApiProxy.start(simulated) as proxy:
        yield proxy


@pytest.fixture
async def client(simulated: SimApiServer, proxy: ApiProxy) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=simulated.ssl_context())
    timeout = aiohttp.ClientTimeout(total=HANG_SECONDS)
    async with aiohttp.ClientSession(proxy.server, connector=connector, timeout=timeout) as client:
        yield client


async def create(client: aiohttp.ClientSession, *names: str) -> None:
    for name in names:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        async with client.post(NODES, json=node) as answer:
            assert answer.status == 201


async def get(client: aiohttp.ClientSession, path: str) -> tuple[int, Any]:
    async with client.get(path) as answer:
        return answer.status, await answer.json()


def patch(client: aiohttp.ClientSession, body: bytes) -> Any:
    return client.patch(f"{NODES}/web-1", headers={"Content-Type": MERGE}, data=body)


async def read_event(watch: aiohttp.ClientResponse) -> Any:
    return msgspec.json.decode(await watch.content.readline())


def open_watch(client: aiohttp.ClientSession) -> Any:
    return client.get(NODES, params={"watch": "1", "timeoutSeconds": "60"})


async def test_every_second_request_gets_429_and_the_time_to_wait(
    proxy: ApiProxy, client: aiohttp.ClientSession
):
    proxy.inject(TooManyRequestsFault(retry_after_seconds=7), verbs=("list",), every=2)
    async with client.get(NODES) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
    assert [(await get(client, NODES))[0] for _ in range(3)] == [200, 429, 200]
    proxy.heal()
    assert [(await get(client, NODES))[0] for _ in range(2)] == [200, 200]


async def test_an_update_gets_a_conflict_and_is_not_forwarded(
    simulated: SimApiServer, proxy: ApiProxy, client: aiohttp.ClientSession
):
    await create(client, "web-1")
    proxy.inject(ConflictFault(), verbs=("patch",))
    mark = simulated.audit_mark()
    async with patch(client, b"{}") as answer:
        assert (answer.status, (await answer.json())["reason"]) == (409, "Conflict")
    assert not simulated.audit_counts(mark)


async def test_an_expired_version_ends_watches_and_later_pages(
    proxy: ApiProxy, client: aiohttp.ClientSession
):
    await create(client, "web-1")
    async with open_watch(client) as watch:
        await read_event(watch)
        proxy.inject(ExpiredFault(), verbs=("watch", "list"))
        last = await read_event(watch)
        assert (last["type"], last["object"]["code"]) == ("ERROR", 410)
        assert not await watch.content.readline()
    async with open_watch(client) as watch:
        assert (await read_event(watch))["object"]["reason"] == "Expired"
    assert (await get(client, NODES))[0] == 200
    assert (await get(client, f"{NODES}?continue=next"))[0] == 410


async def test_a_half_open_watch_is_silent_until_its_client_ends_it(
    proxy: ApiProxy, client: aiohttp.ClientSession
):
    async with open_watch(client) as before:
        proxy.inject(HalfOpenFault(), verbs=("watch",))
        async with open_watch(client) as during:
            proxy.heal()
            async with open_watch(client) as after:
                await create(client, "web-1")
                assert (await read_event(after))["type"] == "ADDED"
                for silent in (before, during):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.1):
                            await silent.content.readline()


async def test_an_empty_close_ends_open_and_new_watches_without_an_event(
    proxy: ApiProxy, client: aiohttp.ClientSession
):
    await create(client, "web-1")
    async with open_watch(client) as before:
        await read_event(before)
        proxy.inject(EmptyClose(), verbs=("watch",))
        assert await before.content.read() == b""
    async with open_watch(client) as during:
        assert (during.status, await during.content.read()) == (200, b"")


# ---- links of processes


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SHORT = 0.1


class EchoServer:
    """Returns every byte."""

    def __init__(self) -> None:
        self.received = bytearray()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
async def fault_proxy(echo: tuple[EchoServer, int]) -> AsyncIterator[FaultProxy]:
    async with FaultProxy.start(echo[1], source="127.0.0.9") as fault_proxy:
        yield fault_proxy


@asynccontextmanager
async def connected(fault_proxy: FaultProxy) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", fault_proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(connection: Connection, data: bytes, seconds: float = HANG_SECONDS) -> bytes:
    reader, writer = connection
    writer.write(data)
    async with asyncio.timeout(seconds):
        await writer.drain()
        return await reader.readexactly(len(data))


async def is_ended(connection: Connection) -> bool:
    try:
        async with asyncio.timeout(HANG_SECONDS):
            return not await connection[0].read(1)
    except OSError:
        return True


async def test_a_cut_ends_open_connections_and_new_ones_until_it_is_healed(fault_proxy: FaultProxy):
    async with connected(fault_proxy) as connection:
        assert await ask(connection, b"before") == b"before"
        fault_proxy.set_state(CUT)
        assert await is_ended(connection)
    async with connected(fault_proxy) as connection:
        assert await is_ended(connection)
    fault_proxy.set_state(HEALTHY)
    async with connected(fault_proxy) as connection:
        assert await ask(connection, b"after") == b"after"


@pytest.mark.parametrize(
    ("blocked", "arrived"), [(BLACK_HOLE, b"1"), (LinkState(blocked=("to-client",)), b"123")]
)
async def test_blocked_bytes_arrive_in_order_once_nothing_blocks_them(
    fault_proxy: FaultProxy, echo: tuple[EchoServer, int], blocked: LinkState, arrived: bytes
):
    """Of a link that is blocked in one direction, requests arrive and answers do not."""
    async with connected(fault_proxy) as connection:
        assert await ask(connection, b"1") == b"1"
        fault_proxy.set_state(blocked)
        with pytest.raises(TimeoutError):
            await ask(connection, b"2", SHORT)
        connection[1].write(b"3")
        await wait_until(lambda: bytes(echo[0].received) == arrived, "requests arrive, or none")
        fault_proxy.set_state(HEALTHY)
        async with asyncio.timeout(HANG_SECONDS):
            assert await connection[0].readexactly(2) == b"23"


async def test_a_delay_counts_in_each_direction(fault_proxy: FaultProxy):
    async with connected(fault_proxy) as connection:
        assert await ask(connection, b"a") == b"a"
        fault_proxy.set_state(LinkState(delay_seconds=SHORT))
        clock = asyncio.get_running_loop().time
        begun = clock()
        assert await ask(connection, b"b") == b"b"
        assert clock() - begun >= 2 * SHORT


async def is_healthy(links: Links, link: Link, process: str) -> bool:
    async with connected(links.proxies[link][process]) as connection:
        try:
            return await ask(connection, b"a") == b"a"
        except (OSError, asyncio.IncompleteReadError):
            return False


async def test_a_link_of_one_process_or_of_all_is_cut_and_healed(echo: tuple[EchoServer, int]):
    kinds: tuple[Link, ...] = ("nats", "api", "talos", "collector")
    async with Links.start(["csr", "metadata"], dict.fromkeys(kinds, LinkTarget(echo[1]))) as links:
        links.set_state("nats", CUT, "csr")
        assert not await is_healthy(links, "nats", "csr")
        assert await is_healthy(links, "nats", "metadata")
        assert await is_healthy(links, "api", "csr")
        links.set_state("nats", CUT)
        assert not await is_healthy(links, "nats", "metadata")
        links.set_state("nats", HEALTHY)
        assert await is_healthy(links, "nats", "csr")
        assert await is_healthy(links, "nats", "metadata")
