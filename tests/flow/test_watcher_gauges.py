"""Gauges of queues and Nodes: only the leading watcher exports them, and measuring blocks nothing."""

import asyncio
import logging

import pytest

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import BusError, StreamStats
from libs.common.bus.stream_size import limit_for_bytes
from libs.common.observability import metrics
from services.watcher.stats_collectors import StreamStatsCollector
from tests.builders import make_node
from tests.bus_actors import MAX_BYTES, NODES, make_event, run_during, wait_until
from tests.watcher_actors import ScriptedNodes, WatcherFlow, make_watcher


class UnwatchedBus(MemoryBus):
    """A look at it fails, or never ends."""

    def __init__(self, server: MemoryServer, *, hangs: bool = False) -> None:
        super().__init__(server)
        self._hangs = hangs
        self.looks = 0

    async def stats(self) -> StreamStats:
        self.looks += 1
        if self._hangs:
            await asyncio.Event().wait()
        raise BusError("the server does not answer")


def shown(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


async def test_the_leader_shows_queues_stream_and_nodes_and_nobody_after_it():
    bus = MemoryBus(MemoryServer())
    source = ScriptedNodes(make_node("web-1"), make_node("web-2", taints=()))
    assert shown("talosccm_stream_messages") is None
    async with run_during(make_watcher(bus, source.source).run()):
        await wait_until(lambda: shown("talosccm_stream_messages") is not None, "it has looked")
        assert shown("talosccm_stream_max_bytes") == limit_for_bytes(0)
        assert shown("talosccm_dead_letters_in_stream") == 0
        assert shown("talosccm_queue_pending", durable="labeler-nodes") == 0
        assert shown("talosccm_queue_stalled_seconds", durable="labeler-nodes") == 0
        assert shown("talosccm_queue_pending", durable="ipam-nodes") is None, "ipam is not asked for"
        await wait_until(lambda: shown("talosccm_nodes", state="uninitialized") == 1, "Nodes are counted")
        assert shown("talosccm_nodes", state="usable") == 1
        assert (shown("talosccm_oldest_uninitialized_seconds") or 0) > 0
        source.put(make_node("web-1", taints=()))
        await wait_until(lambda: shown("talosccm_nodes", state="usable") == 2, "counted again")
        assert shown("talosccm_oldest_uninitialized_seconds") == 0
    assert shown("talosccm_stream_messages") is None
    assert shown("talosccm_queue_pending", durable="labeler-nodes") is None
    assert shown("talosccm_nodes", state="usable") is None
    assert shown("talosccm_oldest_uninitialized_seconds") is None


async def test_it_looks_at_once_and_again_and_a_failed_look_is_told_once_and_shows_nothing(
    caplog: pytest.LogCaptureFixture,
):
    bus = MemoryBus(MemoryServer())
    await bus.provision((NODES,), max_bytes=MAX_BYTES)
    queues = StreamStatsCollector(
        bus, expected_durables=frozenset({NODES.name}), clock=lambda: 0.0, interval_seconds=0.01
    )
    async with run_during(queues.run()):
        await wait_until(lambda: shown("talosccm_queue_pending", durable=NODES.name) == 0, "at once")
        await bus.publish(make_event())
        await wait_until(lambda: shown("talosccm_queue_pending", durable=NODES.name) == 1, "and again")
    unwatched = UnwatchedBus(MemoryServer())
    queues = StreamStatsCollector(
        unwatched, expected_durables=frozenset(), clock=lambda: 0.0, interval_seconds=0.01
    )
    with caplog.at_level(logging.INFO, "services.watcher.stats_collectors"):
        async with run_during(queues.run()):
            await wait_until(lambda: unwatched.looks > 3, "it goes on")
            assert shown("talosccm_stream_messages") is None
    assert [record.message for record in caplog.records] == ["cannot read stream stats"]


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "fails"])
async def test_a_look_that_fails_or_hangs_delays_neither_leading_nor_publishing(hangs: bool):
    bus, source, flow = (
        UnwatchedBus(MemoryServer(), hangs=hangs),
        ScriptedNodes(make_node("web-1")),
        WatcherFlow(),
    )
    async with flow.follow(bus), run_during(make_watcher(bus, source.source).run()):
        await flow.wait_for(lambda flow: flow.snapshots(), "the snapshot is complete")
        await wait_until(lambda: bus.looks > 0, "a look is under way or has failed")
        led = len(flow.leadings())
        source.put(make_node("web-2"))
        await flow.wait_for(lambda flow: "web-2" in flow.existing(), "news")
        await flow.wait_for(lambda flow: len(flow.leadings()) > led, "it leads on")
        await wait_until(lambda: shown("talosccm_nodes", state="uninitialized") == 2, "Nodes are counted")
