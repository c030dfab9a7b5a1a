"""The watcher on a real nats-server, with a script of what the API server tells."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import nats
import pytest
from nats.js.errors import NotFoundError

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import Bus
from libs.common.bus.stream_cache import StreamCache
from libs.common.clocks import loop_time
from libs.common.contract.events import NodeGone, NodeObserved
from libs.common.contract.services import DURABLES
from libs.common.contract.signing_request import SigningRequestCondition
from libs.common.contract.subjects import OBSERVED_CSR, OBSERVED_NODE, SNAPSHOT, STREAM
from libs.common.observability import metrics
from libs.testbed.nats_server import NatsServer
from tests.builders import make_node, make_request
from tests.bus_actors import MAX_BYTES, close_at_end, run_during, wait_until
from tests.flow_actors import PATIENT_TIMING
from tests.watcher_actors import (
    ScriptedKind,
    ScriptedNodes,
    ScriptedRequests,
    WatcherFlow,
    follow_watcher,
    make_nodes,
    make_service_cidr,
    make_watcher,
)

Connect = Callable[..., Awaitable[Bus]]


@pytest.fixture
async def connect(nats_server: NatsServer) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def connect(*, service: str) -> NatsBus:
            return await NatsBus.connect((nats_server.url,), service=service, timing=PATIENT_TIMING)

        yield close_at_end(stack, connect)


async def buses(connect: Connect) -> dict[str, Any]:
    """The buses of a watcher and of its follower."""
    return {"bus": await connect(), "flow_bus": await connect("flow")}


async def test_from_nothing_it_provisions_leads_says_everything_and_then_that_this_is_all(
    connect: Connect,
):
    script = ScriptedNodes(*make_nodes(150))
    async with follow_watcher(script.source, **await buses(connect)) as (watcher, flow):
        assert flow.snapshots()[0].nodes == 150
        assert flow.existing() == set(script.objects)
        assert flow.leadings()[0].epoch == 1
        order = [message.subject for message in sorted(flow.messages, key=lambda m: m.sequence)]
        assert order.index(SNAPSHOT) > max(i for i, s in enumerate(order) if s.startswith(OBSERVED_NODE))
        await wait_until(lambda: watcher.problems() == (), "ready")
        bus = await connect()
        assert await bus.provision(DURABLES, max_bytes=MAX_BYTES) == flow.snapshots()[0].stream_id


async def test_each_object_is_said_once_per_resync_and_the_snapshot_again_after_it(connect: Connect):
    script = ScriptedNodes(*make_nodes(40))

    def count() -> Counter[str]:
        return Counter(event.node.name for event in flow.events() if isinstance(event, NodeObserved))

    async with follow_watcher(script.source, **await buses(connect), resync_seconds=1.0) as (_, flow):
        await flow.wait_for(lambda _: set(count()) == script.objects.keys() and min(count().values()) >= 4)
        # A period begins after the snapshot of the former one, so no object is ahead of it by two.
        assert max(count().values()) <= len(flow.snapshots()) + 1


@pytest.mark.parametrize("resync_seconds", [1.0, 300.0], ids=["by the resync", "by the stats"])
async def test_a_durable_that_an_operator_deletes_is_restored(
    connect: Connect, nats_server: NatsServer, resync_seconds: float
):
    bus = await connect()
    nodes_of = ScriptedNodes(*make_nodes(1)).source
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
    script = ScriptedNodes(*make_nodes(100))
    ranges = ScriptedKind(make_service_cidr("kubernetes", "10.96.0.0/12"))
    approved = SigningRequestCondition(type="Approved")
    requests = ScriptedRequests(make_request("pending"), make_request("decided", conditions=(approved,)))
    sources: Any = {"requests": requests.source, "service_cidrs": ranges.source}
    async with follow_watcher(script.source, **await buses(connect), **sources) as (watcher, flow):
        first = flow.opened[-1].stream_id
        epoch = flow.snapshots()[-1].epoch
        await nats_server.wipe()
        script.delete("n-7.example")
        script.put(make_node("after", uid="uid-after"))
        await flow.wait_for(lambda f: f.opened[-1].stream_id != first and f.snapshots(), "a new snapshot")
        assert flow.existing() == set(script.objects)
        assert flow.existing(OBSERVED_CSR) == set(requests.objects)
        assert flow.snapshots()[-1].epoch == epoch
        assert flow.snapshots()[-1].service_cidrs == ("10.96.0.0/12",)
        assert {event.stream_id for event in flow.list_node_events()} == {flow.opened[-1].stream_id}
        await wait_until(lambda: watcher.problems() == (), "ready again")


@pytest.mark.parametrize("noticed_by", ["the stats", "the next snapshot"])
async def test_a_purged_stream_gets_every_object_again_before_a_snapshot(
    connect: Connect, nats_server: NatsServer, noticed_by: str
):
    script, ranges = ScriptedNodes(*make_nodes(40)), ScriptedKind(make_service_cidr("first", "10.96.0.0/12"))
    cidrs: Any = ranges.source
    async with follow_watcher(script.source, **await buses(connect), service_cidrs=cidrs) as (watcher, _):
        await wait_until(lambda: watcher.problems() == (), "ready")
        operator = await nats.connect(nats_server.url)
        await operator.jetstream().purge_stream(STREAM)
        await operator.close()
        if noticed_by == "the stats":
            watcher._resync.on_stats(await (await connect()).stats())
        else:
            ranges.put(make_service_cidr("second", "10.112.0.0/12"))
        late = StreamCache(clock=loop_time)
        async with run_during((await connect(service="late")).follow("late", "talosccm.v1.flow.>", late)):
            await wait_until(lambda: late.is_complete, "a snapshot")
            assert len(late.list_under(OBSERVED_NODE)) == 40


async def test_a_server_that_restarts_gets_everything_again_under_the_same_stream_id(
    connect: Connect, nats_server: NatsServer
):
    script = ScriptedNodes(*make_nodes(20))
    async with follow_watcher(script.source, **await buses(connect)) as (watcher, flow):
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


async def test_without_a_lease_the_later_one_leads_until_it_is_silent(
    connect: Connect,
):
    script = ScriptedNodes(*make_nodes(5))
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


@pytest.mark.parametrize("version", [500, 500_000], ids=["versions went back", "only those of objects did"])
async def test_an_api_server_restored_from_a_backup_is_believed(connect: Connect, version: int):
    script = ScriptedNodes(*make_nodes(3))
    async with follow_watcher(script.source, **await buses(connect)) as (_, flow):
        script.put(make_node("n-1.example", uid="uid-1", labels={"later": "yes"}))
        await flow.wait_for(lambda f: len(f.list_node_events("n-1.example")) == 2)
        script.version = version
        script.objects = {node.name: node for node in make_nodes(3)}
        script.list_again()
        await flow.wait_for(
            lambda f: f.observed("n-1.example").node.labels == script.objects["n-1.example"].labels
        )
        await flow.wait_for(lambda f: f.epoch("n-1.example") == 2)


async def test_a_node_that_cannot_be_published_does_not_stop_the_others(connect: Connect):
    huge = make_node("huge", uid="uid-h", labels={f"k{i}": "v" * 1000 for i in range(300)})
    script, skipped = (
        ScriptedNodes(huge, make_node("no version", uid="uid-x"), *make_nodes(3)),
        count_skipped(),
    )
    async with follow_watcher(script.source, **await buses(connect)) as (_, flow):
        assert flow.existing() == {node.name for node in make_nodes(3)}
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
