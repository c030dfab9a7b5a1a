"""What a Node waits for is said on it although the writes that others wait for hang."""

import asyncio
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from aiohttp import web

from libs.common.memory_bus.bus import MemoryBus, MemoryServer
from libs.common.process.service import Dependencies
from libs.common.service_spec import LABELER
from services.labeler.service import LabelerService
from services.labeler.settings import LabelerSettings
from tests.builders import a_node, a_snapshot, enriched, leading, observed, some_facts
from tests.bus_actors import MAX_BYTES, doing, eventually, until_led
from tests.kube_loopback import Loopback, a_node_object, api_of
from tests.unreachable import unreachable


async def test_what_blocks_a_node_is_said_while_more_writes_hang_than_there_are_connections(tmp_path: Path):
    said: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/nodes/sad" not in request.path:
            await asyncio.Event().wait()
        said.append(request.path)
        return web.json_response(a_node_object("sad"))

    bus = MemoryBus(MemoryServer())
    incarnation = await bus.provision(LABELER.durables, max_bytes=MAX_BYTES)
    joined = [a_node(f"n-{i}", uid=f"uid-{i}") for i in range(100)]
    sad = a_node("sad", uid="uid-sad")
    async with Loopback.start() as server, api_of(server.url, tmp_path, deadline_seconds=60.0) as kube:
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
        async with doing(labeler.run()):
            await bus.publish(a_snapshot(incarnation=incarnation, nodes=101))
            await bus.publish(leading(incarnation=incarnation))
            await until_led(labeler, bus)
            for node in (*joined, sad):
                await bus.publish(observed(node, incarnation=incarnation))
            for node in joined:
                await bus.publish(enriched(node, some_facts(node_name=node.name), incarnation=incarnation))
            await eventually(lambda: len(server.asked) >= 20, "writes hang")
            await bus.publish(msgspec.structs.replace(unreachable(sad), stream_id=incarnation))
            await eventually(lambda: bool(said), "the Node says what it waits for", 30.0)
            await kube.close()  # else the end waits for what hangs
        assert said[0].endswith("/status")
