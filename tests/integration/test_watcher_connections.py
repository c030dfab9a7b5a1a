"""The watcher has connections to the API server of its own: others' writes may hang as long as they like."""

import asyncio
from pathlib import Path

from aiohttp import web

from libs.common.kube_api.transport import CONNECTIONS
from libs.common.memory_bus.bus import MemoryBus, MemoryServer
from tests.bus_actors import doing, eventually
from tests.kube_loopback import Loopback, a_list, a_node_object, api_of, stream
from tests.watcher_actors import Flow, a_watcher


async def test_nodes_are_listed_and_watched_while_all_other_connections_hang_in_writes(tmp_path: Path):
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            await asyncio.Event().wait()
        if request.query.get("watch"):
            return await stream(request, then_silent=True)
        return a_list(a_node_object("web-1"))

    def asked(method: str) -> int:
        return sum(request.method == method for request in server.asked)

    bus, flow = MemoryBus(MemoryServer()), Flow()
    async with Loopback.start() as server, api_of(server.url, tmp_path) as kube:
        server.answer = answer
        writes = [asyncio.create_task(kube.patch_node(f"n-{i}", [])) for i in range(2 * CONNECTIONS)]
        await eventually(lambda: asked("PATCH") == CONNECTIONS, "every connection is taken")
        async with doing(a_watcher(bus, kube=kube, observe_only=True).run()), flow.following(bus):
            await flow.hears(lambda f: f.existing() == {"web-1"}, "the Node", seconds=5.0)
            await eventually(lambda: asked("GET") == 4, "a list and a watch of Nodes, and of CSRs")
        assert not any(write.done() for write in writes)
        for write in writes:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
