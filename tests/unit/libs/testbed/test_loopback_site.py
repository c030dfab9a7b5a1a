"""The servers of the testbed leave no connection behind, whenever it came."""

import asyncio
import contextlib
import socket

import pytest
from aiohttp import web

from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.loopback_site import LoopbackSite


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response()


@pytest.mark.parametrize("turns", range(6))  # of the event loop; after two, the server has just accepted
async def test_a_connection_that_comes_shortly_before_the_end_is_closed(turns: int):
    site = await LoopbackSite.start(web.ServerRunner(web.Server(answer), shutdown_timeout=0.1), "127.0.0.1")
    with socket.socket() as client:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect(("127.0.0.1", site.port))
        for _ in range(turns):
            await asyncio.sleep(0)
        await site.stop()
        async with asyncio.timeout(HANG_SECONDS):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
