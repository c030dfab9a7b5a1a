"""A Node gets its condition although the writes to other Nodes hang."""

import asyncio
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from aiohttp import web

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.services import LABELER
from libs.common.service.service import Dependencies
from services.labeler.service import LabelerService
from services.labeler.settings import LabelerSettings
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
from tests.kube_loopback import LoopbackServer, make_node_object, open_api


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
        parts = Dependencies(
            bus=bus,
            kube=kube,
            monotonic=time.monotonic,
            now=lambda: datetime.now(UTC),
            random=random.Random(1),
            identity="test",
        )
        labeler = LabelerService(parts, LabelerSettings())
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
            await wait_until(lambda: bool(said), "the Node says what it waits for", 30.0)
            await kube.close()  # else the end waits for what hangs
        assert said[0].endswith("/status")
