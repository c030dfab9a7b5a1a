"""A collector of traces: it accepts every export of the services over HTTP, and keeps none."""

import contextlib
from collections.abc import AsyncIterator
from typing import Self

from aiohttp import web

from libs.testbed.ports import allocate_port


class Collector:
    """Counts the exports that it has accepted."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.exports = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls) -> AsyncIterator[Self]:
        """Serve on the loopback during the block."""
        collector = cls(allocate_port())
        application = web.Application()
        application.router.add_post("/v1/traces", collector._accept)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", collector.port).start()
            yield collector
        finally:
            await runner.cleanup()

    async def _accept(self, request: web.Request) -> web.Response:
        await request.read()
        self.exports += 1
        return web.Response(content_type="application/x-protobuf")
