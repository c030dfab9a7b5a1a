"""The collector accepts what the services export, unless the link to it is a black hole."""

import aiohttp
import pytest

from tests.chaos.links import BLACK_HOLE, Collector, FaultProxy


async def test_an_export_is_accepted_and_none_through_a_black_hole():
    async with (
        Collector.start() as collector,
        FaultProxy.start(collector.port) as proxy,
        aiohttp.ClientSession() as session,
    ):
        url = f"http://127.0.0.1:{proxy.port}/v1/traces"
        async with session.post(url, data=b"spans") as answer:
            assert answer.status == 200
        proxy.set_state(BLACK_HOLE)
        with pytest.raises(TimeoutError):
            await session.post(url, data=b"spans", timeout=aiohttp.ClientTimeout(total=0.1))
    assert collector.exports == 1
