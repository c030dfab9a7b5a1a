"""The console under test, and a client that reads it as a browser does."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from libs.common.bus.protocol import Bus
from libs.common.kube.api import KubeApi
from services.console.service import ConsoleService
from services.console.settings import ConsoleSettings
from tests.bus_actors import run_during, wait_until
from tests.clocks import ManualClock
from tests.service_flow import make_dependencies


class ConsoleClient:
    """Reads the pages and the data of one console."""

    def __init__(self, session: aiohttp.ClientSession, port: int, scheme: str = "http") -> None:
        self.session = session
        self.url = f"{scheme}://127.0.0.1:{port}"

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        """Status, text and headers of a response."""
        async with self.session.get(self.url + path, headers=headers) as response:
            return response.status, await response.text(), response.headers

    async def read_state(self) -> dict[str, Any]:
        """The state as JSON."""
        _, text, _ = await self.get("/api/state")
        state: dict[str, Any] = json.loads(text)
        return state

    async def read_rows(self) -> dict[str, dict[str, Any]]:
        """The rows of all Nodes, by name."""
        return {row["name"]: row for row in (await self.read_state())["nodes"]}

    async def read_requests(self) -> dict[str, dict[str, Any]]:
        """The rows of all requests, by name."""
        return {row["name"]: row for row in (await self.read_state())["requests"]}

    async def read_node(self, name: str) -> dict[str, Any]:
        """Everything about one Node."""
        status, text, _ = await self.get(f"/api/nodes/{name}")
        assert status == 200, text
        detail: dict[str, Any] = json.loads(text)
        return detail

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The frames of an event stream."""
        async with self.session.get(f"{self.url}/api/events") as response:
            assert response.status == 200

            async def frames() -> AsyncIterator[dict[str, Any]]:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])

            yield frames()


@asynccontextmanager
async def run_console(
    bus: Bus,
    *,
    clock: ManualClock | None = None,
    kube: KubeApi | None = None,
    authority: Path | None = None,
    **settings: Any,
) -> AsyncIterator[ConsoleClient]:
    """A console on this bus, once it listens; an exposed one has a certificate of this authority."""
    service = ConsoleService(
        make_dependencies(bus, clock=clock, kube=kube), ConsoleSettings(**({"port": 0} | settings))
    )
    timeout = aiohttp.ClientTimeout(total=20)
    tls = ssl.create_default_context(cafile=authority) if authority else None
    async with (
        run_during(service.run()) as running,
        aiohttp.ClientSession(
            timeout=timeout,
            read_bufsize=2**24,
            connector=aiohttp.TCPConnector(ssl=tls or True),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session,
    ):
        await wait_until(lambda: service.port > 0 or running.done(), "the console listens")
        assert not running.done(), running.exception()
        yield ConsoleClient(session, service.port, "https" if authority else "http")
