"""What waits before it is published, what is told of that in readiness, gauges and traces."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ExportedSpan

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import BusError, StreamStats
from libs.common.contract.events import CsrObserved, Event, NodeGone, SnapshotComplete
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequestCondition
from libs.common.observability import metrics, telemetry
from services.watcher.core.kinds import CSR, NODE
from services.watcher.core.store import Store
from services.watcher.core.work_queue import COOLDOWN_SECONDS, compute_cooldown
from services.watcher.resync_requests import ResyncRequests
from services.watcher.stats_collectors import NodeStatsCollector, StreamStatsCollector
from tests.builders import NOW, make_node, make_request
from tests.bus_actors import MAX_BYTES, NODES, make_event, run_during, wait_until
from tests.clocks import ManualClock, virtually
from tests.tcp_server import OtlpCollector, export_traces_to, get_attributes, run_collector
from tests.watcher_actors import (
    PublisherActor,
    ScriptedNodes,
    follow_watcher,
    make_nodes,
    make_watcher,
    run_publisher,
)


@virtually
async def test_an_outage_is_over_once_all_that_failed_was_said_whoever_rests_with_news():
    async with run_publisher(NODE, labelled("failing", "new"), labelled("busy", "new")) as actor:

        def was_said(name: str, label: str) -> bool:
            return actor.flow.observed(name).node.metadata.labels == {"is": label}

        stream, actor.server.stream = actor.server.stream, None
        actor.put(labelled("failing", "changed"))
        await wait_until(lambda: bool(actor.publisher.problems()), "its rest is over, and it fails")
        actor.server.stream = stream
        actor.put(labelled("busy", "changed"))
        await wait_until(lambda: was_said("busy", "changed"))
        actor.put(labelled("busy", "changed again"))
        actor.put(labelled("failing", "changed again"))
        await wait_until(lambda: was_said("failing", "changed again"))
        assert not was_said("busy", "changed again")
        assert actor.publisher.problems() == ()


async def test_a_timer_that_fires_while_the_publisher_ends_starts_nothing():
    started: list[bool] = []

    async def end_slowly(actor: PublisherActor) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            actor.put(labelled("web", "changed"))  # as a timer does while the last publish ends
            started.append(actor.publisher._queue.get() is None)
            raise

    async with run_publisher(NODE, labelled("web", "new")) as actor:
        actor.publisher._queue.end_delays(float("inf"))
        tasks = actor.publisher._tasks
        assert tasks is not None
        tasks.create_task(end_slowly(actor))
        await asyncio.sleep(0)
    assert started == [False]


def labelled(name: str, label: str) -> Node:
    return make_node(name, uid=name, labels={"is": label}, taints=())


APPROVED = SigningRequestCondition(type="Approved")


def joining(version: int, **fields: Any) -> Node:
    return make_node(resource_version=str(version), **fields)


def has_arrived(actor: PublisherActor, node: Node) -> Callable[[], bool]:
    return lambda: actor.flow.observed("web-1").node == node


LABELS = {"a": "kubelet's"}


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"labels": LABELS}, {"labels": LABELS, "provider_id": "talos://metal/10.0.0.5"}),
        ({"labels": LABELS}, {"labels": {}}),
    ],
    ids=["a provider ID comes", "a label goes"],
)
@virtually
async def test_the_changes_of_a_joining_node_are_one_message_once_it_is_initialized(
    first: dict[str, Any], last: dict[str, Any]
):
    async with run_publisher(NODE, joining(100)) as actor:
        actor.put(joining(101, **first))
        await actor.wait_until_settling("web-1")
        actor.put(joining(102, **last))
        initialized = joining(103, taints=(), **last)
        actor.put(initialized)
        await wait_until(has_arrived(actor, initialized), "the end of its join")
        assert len(actor.flow.list_node_events("web-1")) == 2


@pytest.mark.parametrize("urgent", ["deleted", "replaced", "another one joins"])
@virtually
async def test_beside_a_settling_node_what_is_urgent_is_published_at_once(urgent: str):
    clock = asyncio.get_running_loop().time
    async with run_publisher(NODE, joining(100)) as actor:
        changed = joining(101, labels={"a": "b"})
        actor.put(changed)
        await actor.wait_until_settling("web-1")
        began = clock()
        if urgent == "deleted":
            actor.remove(changed, 102)
            await wait_until(lambda: isinstance(actor.flow.last("web-1"), NodeGone))
        else:
            joined = joining(102, name="web-1" if urgent == "replaced" else "web-2", uid="uid-2")
            actor.put(joined)
            await wait_until(lambda: actor.flow.uid(joined.name) == "uid-2")
        assert clock() - began < COOLDOWN_SECONDS / 2
        messages = len(actor.flow.list_node_events("web-1"))
        assert messages == (1 if urgent == "another one joins" else 2), (
            "the state between was never published"
        )


@pytest.mark.parametrize("is_issued", [True, False])
@virtually
async def test_an_approval_and_its_certificate_are_one_message(is_issued: bool):
    async with run_publisher(CSR, make_request(resource_version="100")) as actor:
        actor.put(make_request(resource_version="101", conditions=(APPROVED,)))
        await actor.wait_until_settling("csr-1")
        if is_issued:
            actor.put(make_request(resource_version="102", conditions=(APPROVED,), certificate="pem"))
        await wait_until(lambda: len(actor.flow.list_request_events("csr-1")) > 1)
        [_, decided] = actor.flow.list_request_events("csr-1")
        assert isinstance(decided, CsrObserved)
        assert decided.request.status.issued is is_issued


@virtually
async def test_the_first_node_of_a_burst_cools_down_as_long_as_the_others():
    crowd = 100
    async with run_publisher(NODE, joining(100)) as actor:
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in range(crowd):
            actor.put(make_node(f"crowd-{number}", uid=f"uid-{number}"))
        changed = joining(101, taints=())
        actor.put(changed)
        await wait_until(has_arrived(actor, changed))
        least = compute_cooldown(crowd, at_most=NODE.max_cooldown_seconds)
        assert clock() - began > (COOLDOWN_SECONDS + least) / 2


@virtually
async def test_only_the_first_state_and_the_end_of_a_node_are_logged_by_default(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, "services.watcher.observation_publisher")
    async with run_publisher(NODE, joining(100)) as actor:
        changed = joining(101, taints=())
        actor.put(changed)
        await wait_until(has_arrived(actor, changed))
        actor.remove(changed, 102)
        await wait_until(lambda: isinstance(actor.flow.last("web-1"), NodeGone))
    assert [record.__dict__["reason"] for record in caplog.records] == ["new to the stream", "deleted"]


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
        assert shown("talosccm_stream_max_bytes") == -1
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


def of_age(name: str, seconds: float, **fields: Any) -> Node:
    node = make_node(name, **fields)
    metadata = replace(node.metadata, creation_timestamp=NOW - timedelta(seconds=seconds))
    return replace(node, metadata=metadata)


async def test_the_oldest_uninitialized_node_is_shown_also_if_its_clock_is_ahead():
    store = Store(NODE)
    store.replace([of_age("done", 9_000, taints=()), of_age("old", 60), of_age("new", 5)], (), "1")
    for now, age in ((NOW, 60), (NOW - timedelta(hours=1), 0)):
        counts = NodeStatsCollector(store, ResyncRequests(time.monotonic), ManualClock(now).now)
        async with run_during(counts.run()):
            await wait_until(lambda: shown("talosccm_nodes", state="uninitialized") == 2, "Nodes are counted")
            assert shown("talosccm_nodes", state="usable") == 1
            assert shown("talosccm_oldest_uninitialized_seconds") == age


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
    bus, source = UnwatchedBus(MemoryServer(), hangs=hangs), ScriptedNodes(make_node("web-1"))
    async with follow_watcher(source.source, bus=bus) as (_, flow):
        await wait_until(lambda: bus.looks > 0, "a look is under way or has failed")
        led = len(flow.leadings())
        source.put(make_node("web-2"))
        await flow.wait_for(lambda flow: "web-2" in flow.existing(), "news")
        await flow.wait_for(lambda flow: len(flow.leadings()) > led, "it leads on")
        await wait_until(lambda: shown("talosccm_nodes", state="uninitialized") == 2, "Nodes are counted")


def watch_events(collector: OtlpCollector) -> list[ExportedSpan]:
    found = [span for span in collector.all if span.name == "watch event"]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


async def test_a_resync_begins_a_trace_and_names_the_one_in_which_the_node_was_said_before():
    script = ScriptedNodes(make_node("web-1"))
    async with run_collector() as collector:
        with export_traces_to(collector.url):
            async with follow_watcher(script.source, resync_seconds=1.0) as (_, flow):
                await wait_until(lambda: len(flow.list_node_events("web-1")) >= 3, "said again, twice")
            await telemetry.flush(5)
        first, second, third = watch_events(collector)[:3]
        assert get_attributes(first)["talosccm.reason"] == "new to the stream"
        assert get_attributes(second)["talosccm.reason"] == "republished"
        assert len({span.trace_id for span in (first, second, third)}) == 3
        assert not first.links
        assert [link.trace_id for link in second.links] == [first.trace_id]
        assert [link.trace_id for link in third.links] == [second.trace_id]
        headers = {
            message.headers["traceparent"].split("-")[1]
            for message in flow.messages
            if "node" in message.subject
        }
        assert headers <= {span.trace_id.hex() for span in collector.all}


@virtually
async def test_a_node_that_is_deleted_after_a_purge_and_before_it_is_published_again_is_said_to_be_gone():
    async with run_publisher(NODE, make_node(resource_version="7")) as actor:
        assert actor.publisher.published.has_lost_nodes(first_sequence=100)
        actor.remove(make_node(), 101)
        await wait_until(lambda: isinstance(actor.flow.last("web-1"), NodeGone), "followers still have it")


class SnapshotBus(MemoryBus):
    """Calls a function before it publishes a snapshot."""

    before_snapshot: Callable[[], None] = staticmethod(lambda: None)

    async def publish(self, event: Event, **options: Any) -> int:
        if isinstance(event, SnapshotComplete):
            self.before_snapshot()
        return await super().publish(event, **options)


@virtually
async def test_after_a_purge_during_a_round_everything_is_published_once_more():
    bus, script = SnapshotBus(MemoryServer()), ScriptedNodes(*make_nodes(3))
    async with follow_watcher(script.source, bus=bus, resync_seconds=3600.0) as (watcher, flow):
        await wait_until(lambda: watcher.problems() == (), "ready")
        stats, rounds = await bus.stats(), len(flow.snapshots())

        def purge() -> None:
            if len(flow.snapshots()) == rounds:
                watcher._resync.on_stats(replace(stats, first_sequence=flow.messages[-1].sequence + 1))

        bus.before_snapshot = purge
        purge()
        await flow.wait_for(lambda f: len(f.snapshots()) == rounds + 2, "a round after each purge", 60.0)
        assert len(flow.list_node_events("n-2.example")) == 3
        await wait_until(lambda: watcher.problems() == (), "ready again")
