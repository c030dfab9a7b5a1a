"""The proxy forwards everything as its client sent it, and answers by its rules, also on open watches."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from libs.testbed.control_plane.audit_log import AuditedRequest
from libs.testbed.kubelets import MERGE
from libs.testbed.sim_apiserver.faults import (
    ConflictFault,
    EmptyClose,
    ExpiredFault,
    HalfOpenFault,
    TooManyRequestsFault,
)
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.chaos.api_proxy import ApiProxy

NODES = "/api/v1/nodes"
SECONDS = 10


@pytest.fixture
async def proxy(simulated: SimApiServer) -> AsyncIterator[ApiProxy]:
    async with ApiProxy.start(simulated) as proxy:
        yield proxy


@pytest.fixture
async def client(simulated: SimApiServer, proxy: ApiProxy) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=simulated.ssl_context())
    timeout = aiohttp.ClientTimeout(total=SECONDS)
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


async def test_requests_and_their_answers_pass_unchanged(
    simulated: SimApiServer, client: aiohttp.ClientSession
):
    mark = simulated.audit_mark()
    await create(client, "web-1")
    async with patch(client, b'{"metadata": {"labels": {"a": "b"}}}') as answer:
        assert (await answer.json())["metadata"]["labels"] == {"a": "b"}
    assert (await get(client, f"{NODES}/web-2"))[0] == 404
    assert set(simulated.audit_counts(mark)) == {
        AuditedRequest("admin", "create", "nodes", succeeded=True),
        AuditedRequest("admin", "patch", "nodes", succeeded=True),
        AuditedRequest("admin", "get", "nodes", succeeded=False),
    }


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
