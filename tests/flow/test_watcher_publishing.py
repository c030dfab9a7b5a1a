"""What /readyz says of observations that could not be published, on the bus of the all-in-one."""

import random
import time
from datetime import UTC, datetime

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.contract.node import Node
from libs.common.contract.subjects import FLOW
from services.watcher.kinds import NODE
from services.watcher.object_publisher import ObjectPublisher
from services.watcher.publish_decision import FencingToken
from services.watcher.published_state import PublishedState
from services.watcher.store import Store
from tests.builders import make_node
from tests.bus_actors import MAX_BYTES, run_during, wait_until
from tests.watcher_actors import WatcherFlow


async def test_an_outage_is_over_once_all_that_failed_was_said_whoever_rests_with_news():
    server, store, flow = MemoryServer(), Store(NODE), WatcherFlow()
    bus, held = MemoryBus(server), PublishedState(clock=time.monotonic)
    publisher = ObjectPublisher(
        NODE,
        store,
        published=held,
        publisher=OrderedPublisher(bus),
        in_flight=8,
        now=lambda: datetime.now(UTC),
        jitter=random.random,
        absent_as_of=nobody_asks,
    )

    def changes(name: str, label: str) -> None:
        store.put(labelled(name, label))
        publisher.enqueue({name})

    def was_said(name: str, label: str) -> bool:
        return bool(flow.list_node_events(name)) and flow.observed(name).node.metadata.labels == {"is": label}

    stream_id = await bus.provision((), max_bytes=MAX_BYTES)
    store.replace([labelled("failing", "new"), labelled("busy", "new")], (), "100")
    async with (
        flow.follow(bus),
        run_during(bus.follow("watcher", f"{FLOW}.>", held)),
        run_during(publisher.run()),
    ):
        await wait_until(lambda: held.problems() == ())
        publisher.start_round(FencingToken(stream_id=stream_id, epoch=1), store.names())
        await wait_until(lambda: was_said("failing", "new") and was_said("busy", "new"))
        stream, server.stream = server.stream, None
        changes("failing", "changed")
        await wait_until(lambda: bool(publisher.problems()), "its rest is over, and it fails")
        server.stream = stream
        changes("busy", "changed")
        await wait_until(lambda: was_said("busy", "changed"))
        changes("busy", "changed again")
        changes("failing", "changed again")
        await wait_until(lambda: was_said("failing", "changed again"))
        assert not was_said("busy", "changed again")
        assert publisher.problems() == ()


async def nobody_asks(name: str) -> int | None:
    raise AssertionError(name)


def labelled(name: str, label: str) -> Node:
    return make_node(name, uid=name, labels={"is": label})
