"""How many connections the watcher and the labeler keep, and which requests go first."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.services import LABELER
from libs.common.kube.api import NODES, SIGNING_REQUESTS
from libs.common.kube.reflector import Reflector
from libs.common.kube.transport import CONNECTIONS
from libs.testbed.child_process import HANG_SECONDS
from services.labeler.service import LabelerService
from services.labeler.settings import LabelerSettings
from services.watcher.core.kinds import CSR, NODE
from services.watcher.core.store import Store
from services.watcher.service import KUBERNETES_CONNECTIONS
from tests.builders import (
    make_facts,
    make_leading,
    make_node,
    make_node_enriched,
    make_node_observed,
    make_snapshot,
    make_unreachable,
)
from tests.bus_actors import MAX_BYTES, run_during, wait_until, wait_until_led
from tests.kube_loopback import LoopbackServer, make_node_object, open_api, respond_list, respond_stream
from tests.service_flow import make_dependencies
from tests.watcher_actors import WatcherFlow, make_informer, make_watcher


async def test_nodes_are_listed_and_watched_while_all_other_connections_hang_in_writes(tmp_path: Path):
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            await asyncio.Event().wait()
        if request.query.get("watch"):
            return await respond_stream(request, stays_open=True)
        return respond_list(make_node_object("web-1"))

    def asked(method: str) -> int:
        return sum(request.method == method for request in server.requests)

    bus, flow = MemoryBus(MemoryServer()), WatcherFlow()
    async with (
        LoopbackServer.start() as server,
        open_api(server.url, tmp_path, deadline_seconds=60.0) as kube,
    ):
        server.answer = answer
        writes = [asyncio.create_task(kube.patch_node(f"n-{i}", [])) for i in range(2 * CONNECTIONS)]
        await wait_until(lambda: asked("PATCH") == CONNECTIONS, "every connection is taken")
        async with run_during(make_watcher(bus, kube=kube, observe_only=True).run()), flow.follow(bus):
            await flow.wait_for(lambda f: f.existing() == {"web-1"}, "the Node")
            await wait_until(lambda: asked("GET") == 6, "a list and a watch of each kind")
        assert not any(write.done() for write in writes)
        for write in writes:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)


async def test_the_lease_is_read_while_lists_that_confirm_absences_hang(tmp_path: Path):
    async def answer(request: web.Request) -> web.StreamResponse:
        if "leases" in request.path:
            metadata = {"name": "ccm", "namespace": "kube-system", "resourceVersion": "1"}
            return web.json_response({"metadata": metadata, "spec": {"holderIdentity": "host-a"}})
        if request.query.get("watch"):
            return await respond_stream(request, stays_open=True)
        if request.query.get("limit") == "1":
            await asyncio.Event().wait()
        return respond_list()

    def pending(resource: str) -> int:
        return sum(r.path.endswith(resource) and r.query.get("limit") == "1" for r in server.requests)

    async with LoopbackServer.start() as server, open_api(server.url, tmp_path) as kube:
        server.answer = answer
        api = kube.with_own_connections(connections=KUBERNETES_CONNECTIONS)

        def a_watch(kind: Any, resource: Any) -> Any:
            return make_informer(
                kind,
                lambda on_unreadable, on_trouble: Reflector(api, resource, on_unreadable=on_unreadable),
                Store(kind),
            )

        nodes, requests = a_watch(NODE, NODES), a_watch(CSR, SIGNING_REQUESTS)
        async with run_during(nodes.run()), run_during(requests.run()):
            await wait_until(lambda: sum("watch" in r.query for r in server.requests) == 2)
            waiting = [
                asyncio.create_task(each.absent_as_of_version(f"n-{i}"))
                for i in range(64)
                for each in (nodes, requests)
            ]
            await wait_until(lambda: pending("nodes") > 0 and pending("certificatesigningrequests") > 0)
            async with asyncio.timeout(HANG_SECONDS):
                assert (await api.get_lease("kube-system", "ccm", deadline_seconds=4.0)).holder == "host-a"
            assert (pending("nodes"), pending("certificatesigningrequests")) == (1, 1)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        await api.close()


async def test_what_blocks_a_node_is_said_while_more_writes_hang_than_there_are_connections(tmp_path: Path):
    said: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/nodes/sad" not in request.path:
            await asyncio.Event().wait()
        said.append(request.path)
        return web.json_response(make_node_object("sad"))

    bus = MemoryBus(MemoryServer())
    stream_id = await bus.provision(LABELER.durables, max_bytes=MAX_BYTES)
    joined = [make_node(f"n-{i}", uid=f"uid-{i}") for i in range(100)]
    sad = make_node("sad", uid="uid-sad")
    async with (
        LoopbackServer.start() as server,
        open_api(server.url, tmp_path, deadline_seconds=60.0) as kube,
    ):
        server.answer = answer
        labeler = LabelerService(make_dependencies(bus, kube=kube), LabelerSettings())
        async with run_during(labeler.run()):
            await bus.publish(make_snapshot(stream_id=stream_id, nodes=101))
            await bus.publish(make_leading(stream_id=stream_id))
            await wait_until_led(labeler, bus)
            for node in (*joined, sad):
                await bus.publish(make_node_observed(node, stream_id=stream_id))
            for node in joined:
                await bus.publish(
                    make_node_enriched(node, make_facts(node_name=node.name), stream_id=stream_id)
                )
            await wait_until(lambda: len(server.requests) >= 20, "writes hang")
            await bus.publish(msgspec.structs.replace(make_unreachable(sad), stream_id=stream_id))

            async def is_said() -> bool:
                await bus.publish(make_leading(stream_id=stream_id))  # on a busy machine it outlives one
                return bool(said)

            await wait_until(is_said, "the Node says what it waits for")
            await kube.close()  # else the end waits for what hangs
        assert said[0].endswith("/status")
