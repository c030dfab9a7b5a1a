"""The watcher on a real nats-server, with a script of what the API server tells."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import nats
import pytest
from nats.js.errors import NotFoundError

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import Bus
from libs.common.contract.events import NodeGone, NodeObserved
from libs.common.contract.node import NodeCondition
from libs.common.contract.services import DURABLES
from libs.common.contract.signing_request import SigningRequestCondition
from libs.common.contract.subjects import OBSERVED_NODE, SNAPSHOT, STREAM
from libs.common.observability import metrics
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.nats_server import NatsServer
from services.watcher.core.kinds import NODE
from services.watcher.core.work_queue import COOLDOWN_SECONDS, compute_cooldown
from tests.builders import make_node, make_request
from tests.bus_actors import MAX_BYTES, close_at_end, run_during, wait_until
from tests.flow_actors import PATIENT_TIMING
from tests.watcher_actors import (
    ScriptedKind,
    ScriptedNodes,
    ScriptedRequests,
    WatcherFlow,
    make_service_cidr,
    make_watcher,
)

CROWD = 500

Connect = Callable[..., Awaitable[Bus]]


@pytest.fixture
async def connect(nats_server: NatsServer) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def connect(*, service: str) -> NatsBus:
            return await NatsBus.connect((nats_server.url,), service=service, timing=PATIENT_TIMING)

        yield close_at_end(stack, connect)


@asynccontextmanager
async def follow_watcher(
    connect: Connect, script: ScriptedNodes, **settings: Any
) -> AsyncIterator[WatcherFlow]:
    """A watcher on that script, and the flow that it publishes, from the first snapshot on."""
    watcher = make_watcher(await connect(), script.source, **settings)
    flow = WatcherFlow()
    async with run_during(watcher.run()), flow.follow(await connect("flow")):
        await flow.wait_for(lambda f: f.snapshots())
        yield flow


def nodes(count: int) -> list:
    return [make_node(f"n-{i}.example", uid=f"uid-{i}", resource_version=str(i + 1)) for i in range(count)]


async def test_from_nothing_it_provisions_leads_says_everything_and_then_that_this_is_all(
    connect: Connect,
):
    script = ScriptedNodes(*nodes(150))
    watcher = make_watcher(await connect(), script.source)
    flow = WatcherFlow()
    async with run_during(watcher.run()), flow.follow(await connect("flow")):
        await flow.wait_for(lambda f: f.snapshots(), "a snapshot")
        assert flow.snapshots()[0].nodes == 150
        assert flow.existing() == set(script.objects)
        assert flow.leadings()[0].epoch == 1
        order = [message.subject for message in sorted(flow.messages, key=lambda m: m.sequence)]
        assert order.index(SNAPSHOT) > max(i for i, s in enumerate(order) if s.startswith(OBSERVED_NODE))
        await wait_until(lambda: watcher.problems() == (), "ready")
        bus = await connect()
        assert await bus.provision(DURABLES, max_bytes=MAX_BYTES) == flow.snapshots()[0].stream_id


async def test_news_are_said_and_heartbeats_are_not(connect: Connect):
    script = ScriptedNodes(*nodes(3))
    async with follow_watcher(connect, script) as flow:
        for beat in range(20):
            pressure = NodeCondition(type="MemoryPressure", status="False", message=f"beat {beat}")
            script.put(make_node("n-1.example", uid="uid-1", conditions=(pressure,)))
        changed = script.put(make_node("n-2.example", uid="uid-2", labels={"zone": "b"}))
        joined = script.put(make_node("new", uid="uid-new"))
        script.delete("n-0.example")
        await flow.wait_for(lambda f: f.existing() == {"n-1.example", "n-2.example", "new"})
        await flow.wait_for(lambda f: len(f.list_node_events("n-2.example")) == 2)
        assert len(flow.list_node_events("n-1.example")) == 1
        for node in (changed, joined):
            said = flow.last(node.name)
            assert isinstance(said, NodeObserved)
            assert said.node == node
        gone = flow.last("n-0.example")
        assert isinstance(gone, NodeGone)
        assert (gone.uid, gone.order.resource_version) == ("uid-0", script.version)


async def test_each_object_is_said_once_per_resync_and_the_snapshot_again_after_it(connect: Connect):
    script = ScriptedNodes(*nodes(40))
    flow = WatcherFlow()
    watcher = make_watcher(await connect(), script.source, resync_seconds=1.0)

    def count() -> Counter[str]:
        return Counter(event.node.name for event in flow.events() if isinstance(event, NodeObserved))

    async with run_during(watcher.run()), flow.follow(await connect("flow")):
        await flow.wait_for(lambda _: set(count()) == script.objects.keys() and min(count().values()) >= 4)
        # A period begins after the snapshot of the former one, so no object is ahead of it by two.
        assert max(count().values()) <= len(flow.snapshots()) + 1


@pytest.mark.parametrize("resync_seconds", [1.0, 300.0], ids=["by the resync", "by the stats"])
async def test_a_durable_that_an_operator_deletes_is_restored(
    connect: Connect, nats_server: NatsServer, resync_seconds: float
):
    bus = await connect()
    nodes_of = ScriptedNodes(*nodes(1)).source
    async with run_during(make_watcher(bus, nodes_of, resync_seconds=resync_seconds).run()):
        operator = await nats.connect(nats_server.url)
        stream = operator.jetstream()

        async def exists() -> bool:
            try:
                await stream.consumer_info(STREAM, DURABLES[0].name)
            except NotFoundError:
                return False
            return True

        await wait_until(exists, "the durable")
        await stream.delete_consumer(STREAM, DURABLES[0].name)
        await wait_until(exists, "the durable again")
        await operator.close()


async def test_a_wiped_stream_is_made_again_with_everything_in_it(connect: Connect, nats_server: NatsServer):
    script = ScriptedNodes(*nodes(100))
    flow = WatcherFlow()
    ranges = ScriptedKind(make_service_cidr("kubernetes", "10.96.0.0/12"))
    approved = SigningRequestCondition(type="Approved")
    requests = ScriptedRequests(make_request("pending"), make_request("decided", conditions=(approved,)))
    watcher = make_watcher(
        await connect(), script.source, requests=requests.source, service_cidrs=ranges.source
    )
    async with run_during(watcher.run()), flow.follow(await connect("flow")):
        await flow.wait_for(lambda f: f.snapshots())
        first = flow.opened[-1].stream_id
        epoch = flow.snapshots()[-1].epoch
        await nats_server.wipe()
        script.delete("n-7.example")
        script.put(make_node("after", uid="uid-after"))
        await flow.wait_for(lambda f: f.opened[-1].stream_id != first and f.snapshots(), "a new snapshot")
        assert flow.existing() == set(script.objects)
        assert flow.existing_requests() == set(requests.objects)
        assert flow.snapshots()[-1].epoch == epoch
        assert flow.snapshots()[-1].service_cidrs == ("10.96.0.0/12",)
        assert {event.stream_id for event in flow.nodes()} == {flow.opened[-1].stream_id}
        await wait_until(lambda: watcher.problems() == (), "ready again")


async def test_a_server_that_restarts_gets_everything_again_under_the_same_stream_id(
    connect: Connect, nats_server: NatsServer
):
    script = ScriptedNodes(*nodes(20))
    flow = WatcherFlow()
    watcher = make_watcher(await connect(), script.source)
    async with run_during(watcher.run()), flow.follow(await connect("flow")):
        await flow.wait_for(lambda f: f.snapshots())
        before = {name: flow.observed(name).observed_at for name in script.objects}
        await nats_server.kill()
        await wait_until(lambda: watcher.problems() != (), "not ready")
        script.delete("n-3.example")
        await nats_server.restart()
        await flow.wait_for(lambda f: f.existing() == set(script.objects))
        await flow.wait_for(
            lambda f: all(f.observed(name).observed_at > before[name] for name in script.objects),
            "everything said again",
        )
        assert isinstance(flow.last("n-3.example"), NodeGone)
        await wait_until(lambda: watcher.problems() == (), "ready again")


async def test_a_server_that_comes_late_finds_the_watcher_waiting_and_not_ready(
    connect: Connect, nats_server: NatsServer
):
    await nats_server.kill()
    script = ScriptedNodes(*nodes(5))
    watcher = make_watcher(await connect(), script.source)
    async with run_during(watcher.run()):
        await wait_until(lambda: any("objects may be missing in the stream" in p for p in watcher.problems()))
        await nats_server.restart()
        flow = WatcherFlow()
        async with flow.follow(await connect("flow")):
            await flow.wait_for(lambda f: f.snapshots(), "a snapshot")
            assert flow.existing() == set(script.objects)
            await wait_until(lambda: watcher.problems() == (), "ready")


async def test_a_new_leader_says_who_went_while_nobody_watched_and_everything_else_anew(
    connect: Connect,
):
    script = ScriptedNodes(*nodes(10))
    flow = WatcherFlow()
    async with flow.follow(await connect("flow")):
        async with run_during(make_watcher(await connect(), script.source, identity="a").run()):
            await flow.wait_for(lambda f: f.snapshots())
        script.delete("n-4.example")
        async with run_during(make_watcher(await connect(), script.source, identity="b").run()):
            await flow.wait_for(lambda f: len(f.snapshots()) == 2)
            assert flow.existing() == set(script.objects)
            assert {flow.epoch(name) for name in [*script.objects, "n-4.example"]} == {2}
            assert flow.leadings()[-1].epoch == 2
            assert flow.leadings()[-1].holder == "b"


async def test_without_a_lease_the_later_one_leads_until_it_is_silent(
    connect: Connect,
):
    script = ScriptedNodes(*nodes(5))
    flow = WatcherFlow()
    first = make_watcher(await connect(), script.source, identity="a")
    second = make_watcher(await connect(), script.source, identity="b")
    async with flow.follow(await connect("flow")), run_during(first.run()):
        await flow.wait_for(lambda f: f.snapshots())
        async with run_during(second.run()):
            await flow.wait_for(lambda f: len(f.snapshots()) == 2)
            await wait_until(lambda: any("publishes to this stream, too" in p for p in first.problems()))
            script.put(make_node("joins", uid="uid-j"))
            await flow.wait_for(lambda f: f.last("joins"))
            assert flow.epoch("joins") == 2
        await flow.wait_for(lambda f: len(f.snapshots()) == 3, "the first leads again")
        assert flow.leadings()[-1].holder == "a"
        assert flow.leadings()[-1].epoch == 3
        await wait_until(lambda: first.problems() == ())


async def test_a_list_after_a_gap_says_what_changed_and_who_went_in_it_and_nothing_else(connect: Connect):
    script = ScriptedNodes(*nodes(10))
    async with follow_watcher(connect, script) as flow:
        said = len(flow.nodes())
        listeners, script._listeners = script._listeners, []  # the watch is deaf
        script.delete("n-0.example")
        script.put(make_node("n-1.example", uid="uid-1", labels={"zone": "b"}))
        script._listeners = listeners
        script.list_again()
        await flow.wait_for(
            lambda f: (
                isinstance(f.last("n-0.example"), NodeGone) and len(f.list_node_events("n-1.example")) == 2
            )
        )
        marker = script.put(make_node("marker", uid="uid-m"))
        await flow.wait_for(lambda f: f.last(marker.name))
        assert len(flow.nodes()) == said + 3


@pytest.mark.parametrize("version", [500, 500_000], ids=["versions went back", "only those of objects did"])
async def test_an_api_server_restored_from_a_backup_is_believed(connect: Connect, version: int):
    script = ScriptedNodes(*nodes(3))
    flow = WatcherFlow()
    async with (
        run_during(make_watcher(await connect(), script.source).run()),
        flow.follow(await connect("flow")),
    ):
        script.put(make_node("n-1.example", uid="uid-1", labels={"later": "yes"}))
        await flow.wait_for(lambda f: f.snapshots() and len(f.list_node_events("n-1.example")) == 1)
        script.version = version
        script.objects = {node.name: node for node in nodes(3)}
        script.list_again()
        await flow.wait_for(
            lambda f: f.observed("n-1.example").node.labels == script.objects["n-1.example"].labels
        )
        await flow.wait_for(lambda f: f.epoch("n-1.example") == 2)


async def test_an_unreadable_node_is_neither_said_nor_said_to_be_gone(connect: Connect):
    script = ScriptedNodes(*nodes(3))
    async with follow_watcher(connect, script) as flow:
        del script.objects["n-1.example"]
        del script.objects["n-2.example"]
        script.unreadable = ("n-1.example",)
        script.list_again()
        await flow.wait_for(lambda f: isinstance(f.last("n-2.example"), NodeGone))
        assert isinstance(flow.last("n-1.example"), NodeObserved)


async def test_a_node_that_cannot_be_published_does_not_stop_the_others(connect: Connect):
    huge = make_node("huge", uid="uid-h", labels={f"k{i}": "v" * 1000 for i in range(300)})
    script, skipped = ScriptedNodes(huge, make_node("no version", uid="uid-x"), *nodes(3)), count_skipped()
    flow = WatcherFlow()
    watcher = make_watcher(await connect(), script.source)
    async with run_during(watcher.run()), flow.follow(await connect("flow")):
        await flow.wait_for(lambda f: f.snapshots())
        assert flow.existing() == {node.name for node in nodes(3)}
        assert flow.snapshots()[0].nodes == 5
    assert count_skipped() == skipped + 2


def count_skipped() -> float:
    labels = {"event": "flow.observed.node", "outcome": "skipped"}
    return metrics.REGISTRY.get_sample_value("talosccm_published_total", labels) or 0.0


async def test_a_full_stream_is_not_ready_and_says_so_until_there_is_room(connect: Connect):
    annotations = {f"a{i}": "x" * 1000 for i in range(200)}
    script = ScriptedNodes(*(make_node(f"big-{i}", uid=f"u{i}", annotations=annotations) for i in range(400)))
    watcher = make_watcher(await connect(), script.source)
    async with run_during(watcher.run()):
        await wait_until(lambda: any("10077" in problem for problem in watcher.problems()), "full")
        for name in list(script.objects)[:150]:
            script.put(make_node(name, uid=script.objects[name].uid))
        await wait_until(lambda: watcher.problems() == (), "room again")


async def test_news_leave_at_once(connect: Connect):
    script = ScriptedNodes(*nodes(50))
    async with follow_watcher(connect, script) as flow:
        loop = asyncio.get_running_loop()
        delays = []
        for i in range(50):
            began = loop.time()
            script.put(make_node(f"joins-{i}", uid=f"uid-j{i}"))
            while flow.last(f"joins-{i}") is None:
                await asyncio.sleep(0)
                assert loop.time() - began < HANG_SECONDS
            delays.append(loop.time() - began)
        p50 = sorted(delays)[25]
        assert p50 < COOLDOWN_SECONDS / 2, f"{p50 * 1000:.1f} ms: only what was just said rests"


async def test_what_changes_a_joining_node_again_and_again_is_said_together_and_its_end_at_once(
    connect: Connect,
):
    script = ScriptedNodes(*nodes(1))
    async with follow_watcher(connect, script) as flow:
        script.put(make_node("joins", uid="uid-j"))
        await flow.wait_for(lambda f: f.last("joins") is not None, "its first word")
        for change in range(20):
            latest = script.put(make_node("joins", uid="uid-j", labels={"change": str(change)}))
        await flow.wait_for(lambda f: f.observed("joins").node == latest, "what it is like in the end")
        assert len(flow.list_node_events("joins")) == 2
        for n in range(CROWD):  # the more are at rest, the longer each rests
            script.put(make_node(f"crowd-{n}", uid=f"uid-c{n}"))
        await flow.wait_for(lambda f: len(f.existing()) == 2 + CROWD, "the crowd has joined")
        latest = script.put(make_node("joins", uid="uid-j", labels={"change": "among the crowd"}))
        await flow.wait_for(lambda f: f.observed("joins").node == latest, "its third word")
        script.put(make_node("joins", uid="uid-j", labels={"change": "last"}))
        began = asyncio.get_running_loop().time()
        script.delete("joins")
        await flow.wait_for(lambda f: isinstance(f.last("joins"), NodeGone), "its end")
        rest = compute_cooldown(CROWD, at_most=NODE.max_cooldown_seconds)
        assert asyncio.get_running_loop().time() - began < rest / 2
        assert len(flow.list_node_events("joins")) == 4
