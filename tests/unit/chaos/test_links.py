"""The links of each process: a fault changes the state of those that it names."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.chaos.links import CUT, HEALTHY, Link, Links, LinkTarget, UnknownLink


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


@pytest.mark.parametrize(("link", "process"), [("nats", "watcher"), ("talos", "csr")])
async def test_a_fault_of_a_link_that_no_process_has_fails(links: Links, link: Link, process: str):
    with pytest.raises(UnknownLink, match=f"{process} has no link '{link}'"):
        links.set_state(link, CUT, process)
