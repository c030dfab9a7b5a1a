"""One address on which a runner of aiohttp serves connections, and at whose end none is left behind."""

from __future__ import annotations

import asyncio
import ssl

from aiohttp import web


class LoopbackSite:
    """A listening address, from `start` to `stop`."""

    def __init__(self, server: asyncio.Server, runner: web.BaseRunner) -> None:
        self._server = server
        self._runner = runner

    @classmethod
    async def start(
        cls, runner: web.BaseRunner, host: str, port: int = 0, *, tls: ssl.SSLContext | None = None
    ) -> LoopbackSite:
        """Set the runner up and listen; port 0 selects a free one. Raises OSError."""
        await runner.setup()
        assert runner.server is not None
        try:
            server = await asyncio.get_running_loop().create_server(runner.server, host, port, ssl=tls)
        except OSError:
            await runner.cleanup()
            raise
        return cls(server, runner)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        await stop_listening(self._server)
        await self._runner.cleanup()


async def stop_listening(server: asyncio.Server) -> None:
    """Close the server; each accepted connection is known to its protocol afterwards.

    asyncio of Python 3.11 never closes a connection that it has accepted just before its server closes.
    Python reports such a connection in whichever test runs when it is collected.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    await asyncio.sleep(0)  # what has been accepted gets its protocol
    server.close()
