"""The limits of the stream: others fill it, on a real nats-server; messages expire while no watcher leads."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import Bus, BusError, StreamFull
from libs.common.bus.stream_cache import StreamCache
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract.events import Leading
from libs.common.contract.subjects import FLOW, LEADING, OBSERVED_NODE
from libs.testbed.nats_server import NatsServer
from services.watcher.leader_publisher import LeaderPublisher
from tests.builders import make_node
from tests.bus_actors import make_event, run_during, wait_until
from tests.clocks import VirtualClock, run_virtually
from tests.flow_actors import PATIENT_TIMING
from tests.watcher_actors import ScriptedNodes, follow_watcher, make_watcher

MEBIBYTE = 1024 * 1024
IDENTITIES, PENDING, REQUEST_BYTES = 18, 16, 234 * 1024  # what one pending request takes, in two messages

Connect = Callable[[str], Awaitable[Bus]]
Server = Callable[[int], Awaitable[Connect]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """`connect = await server(64 * MEBIBYTE)`: buses on one server that stores no more than that."""
    async with AsyncExitStack() as stack:

        async def started(store_bytes: int) -> Connect:
            nats = await stack.enter_async_context(NatsServer.start(tmp_path / "nats"))
            limited = f'jetstream {{ store_dir: "{nats.store}", max_file_store: {store_bytes} }}\n'
            (nats.run_dir / "nats.conf").write_text(limited)
            await nats.restart()

            async def connect(service: str) -> Bus:
                bus = await NatsBus.connect((nats.url,), service=service, timing=PATIENT_TIMING)
                stack.push_async_callback(bus.close)
                return bus

            return connect

        yield started


async def fill(bus: Bus) -> None:
    """Publish until not even the smallest message of a new subject is accepted."""
    count = 0
    for size in (250_000, 20_000, 1_000, 1):
        with suppress(StreamFull):
            while True:
                await bus.publish(make_event(f"other-{count}", uid="u" * size))
                count += 1


async def no_leading(bus: Bus) -> bool:
    return await bus.get_last(LEADING) is None


async def leader(bus: Bus) -> str:
    try:
        message = await bus.get_last(LEADING)
    except BusError:
        return ""  # no stream yet, or a server that is busy with what fills it
    return message.event.holder if message is not None and isinstance(message.event, Leading) else ""


async def test_a_new_leader_is_heard_in_a_full_stream_that_cannot_grow(server: Server):
    connect = await server(64 * MEBIBYTE)
    bus, filler, script = await connect("watcher"), await connect("metadata"), ScriptedNodes(make_node())
    async with run_during(make_watcher(bus, script.source, identity="a").run()):
        await wait_until(lambda: leader_is(bus, "a"), "the first leader is heard")
    await wait_until(lambda: no_leading(bus), "its last Leading expires")
    await fill(filler)
    name = "a-leader-whose-name-is-longer" * 4
    async with run_during(make_watcher(bus, script.source, identity=name).run()):
        for _ in range(3):
            await wait_until(lambda: leader_is(bus, name), "the next leader is heard")
            with pytest.raises(StreamFull):
                await filler.publish(make_event("one-more", uid="u" * 5_000))
        said = await bus.get_last(LEADING)
        assert said is not None
        await wait_until(lambda: renewed(bus, said.sequence), "it goes on being heard")


async def leader_is(bus: Bus, holder: str) -> bool:
    return await leader(bus) == holder


async def renewed(bus: Bus, sequence: int) -> bool:
    message = await bus.get_last(LEADING)
    return message is not None and message.sequence > sequence


async def test_what_fills_the_stream_makes_it_grow_so_that_a_new_node_is_published(server: Server):
    connect = await server(256 * MEBIBYTE)
    bus, filler, script = await connect("watcher"), await connect("metadata"), ScriptedNodes()
    async with follow_watcher(script.source, bus=bus) as (_, flow):
        with suppress(StreamFull):
            for i in range(IDENTITIES * PENDING):
                await filler.publish(make_event(f"csr-{i}", uid="u" * REQUEST_BYTES))
        script.put(make_node("web-1", labels={"large": "x" * 200_000}))
        await flow.wait_for(
            lambda flow: "web-1" in flow.existing(), "a Node that joins meanwhile is published"
        )
        looked = await bus.stats()
        assert looked.bytes < 0.75 * looked.max_bytes, "there is room again"
        await filler.publish(make_event("one-more", uid="u" * REQUEST_BYTES))


def test_the_used_part_of_the_headroom_is_logged_once_per_change(caplog: pytest.LogCaptureFixture):
    parts: Any = dict.fromkeys(("bus", "publisher", "epoch", "requests"))
    publisher = LeaderPublisher(**parts, heartbeat_ttl_seconds=10.0)
    for used_bytes in (0, 0, 1, MEBIBYTE // 2, MEBIBYTE // 2):
        publisher._report_headroom(used_bytes)
    assert [record.__dict__["used_percent"] for record in caplog.records] == [0, 50]


NODES = 40


@pytest.mark.parametrize("resync_seconds", [300.0, 900.0, 3600.0])
@pytest.mark.parametrize("periods", [1.1, 1.9])
def test_no_later_follower_is_complete_once_a_node_has_expired(resync_seconds: float, periods: float):
    async def run() -> None:
        clock = VirtualClock()
        bus = MemoryBus(MemoryServer(clock=clock.now))
        nodes = ScriptedNodes(*(make_node(f"n-{i}", uid=f"uid-{i}") for i in range(NODES)))
        watcher = make_watcher(bus, nodes.source, clock=clock, resync_seconds=resync_seconds)
        async with run_during(watcher.run()):
            await asyncio.sleep(periods * resync_seconds)
            assert await count_nodes(bus, clock) == NODES
        counts: list[int] = []
        for _ in range(int(MAX_MESSAGE_AGE.total_seconds() / 20.0) + 3):
            counts.append(await count_nodes(bus, clock))
            await asyncio.sleep(20.0)
        assert set(counts) == {NODES, 0}

    run_virtually(run())


async def count_nodes(bus: MemoryBus, clock: VirtualClock) -> int:
    """How many Nodes a follower has that starts now, 0 if it is not complete."""
    cache = StreamCache(clock=clock)
    async with run_during(bus.follow("later", f"{FLOW}.>", cache)):
        await wait_until(lambda: not cache.is_replaying)
        return len(cache.list_under(OBSERVED_NODE)) if cache.is_complete else 0
