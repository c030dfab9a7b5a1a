"""The health port is open to the whole network: nobody there may take our sockets, or keep others out."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import pytest

from libs.common.process.health import HealthServer
from libs.common.process.readiness import Readiness
from libs.common.process.serving_certificate import ServingCertificate


@pytest.fixture(params=["http", "https"])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Of a server that knows two callers at a time, each for half a second."""
    secure = request.param == "https"
    certificate = ServingCertificate(None, None, now=datetime.now(UTC)) if secure else None
    server = HealthServer(Readiness(time.monotonic), certificate, most_callers=2, call_seconds=0.5)
    yield await server.start("127.0.0.1", 0)
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


async def seconds_until_closed(port: int, sent: bytes) -> float:
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(5):
        try:
            while await reader.read(65536):
                pass
        except ConnectionError:
            pass  # reset is closed, too
    writer.close()
    return time.monotonic() - began


@pytest.mark.parametrize(
    "sent", [b"", b"GET /metrics HT", b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03"]
)
async def test_a_caller_who_stalls_is_let_go(port: int, sent: bytes):
    assert await seconds_until_closed(port, sent) < 2
    assert await is_alive(port)


async def test_more_callers_than_we_have_room_for_are_let_go_and_the_next_is_served(port: int):
    await asyncio.gather(*(seconds_until_closed(port, b"GET /livez HT") for _ in range(50)))
    assert await is_alive(port)
