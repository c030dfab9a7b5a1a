"""Followers that start while no watcher leads and messages expire."""

import asyncio

import pytest

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.stream_cache import StreamCache
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract.subjects import FLOW, OBSERVED_NODE
from tests.builders import make_node
from tests.bus_actors import run_during, wait_until
from tests.clocks import VirtualClock, run_virtually
from tests.watcher_actors import ScriptedNodes, make_watcher

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
