"""A leader that was paused publishes after another one has taken over: what becomes of that."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest

from libs.common.bus import Bus
from libs.common.events import Event, NodeGone, NodeObserved, ObservedOrder
from libs.common.flow_table import FlowTable
from libs.common.memory_bus.bus import MemoryBus, MemoryServer
from libs.common.nats_bus.bus import NatsBus
from libs.common.subjects import FLOW, OBSERVED_NODE, subject_of
from libs.testbed.nats_server import NatsServer
from tests.builders import a_node
from tests.bus_actors import doing, eventually
from tests.watcher_actors import Flow, ScriptedNodes, a_watcher

Connect = Callable[..., Awaitable[Bus]]
GHOST = "ghost.example"
RESYNC: dict[str, Any] = {"resync_seconds": 1.0}


@pytest.fixture(params=["memory", "nats"])
async def connect(request: pytest.FixtureRequest, nats_server: NatsServer) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:
        memory = MemoryServer()

        async def connected(service: str = "watcher") -> Bus:
            if request.param == "memory":
                return MemoryBus(memory)
            bus = await NatsBus.connect((nats_server.url,), service=service)
            stack.push_async_callback(bus.close)
            return bus

        yield connected


class PausedBefore:
    """The bus of a process that is paused just before it publishes that subject: the message leaves later."""

    def __init__(self, bus: Bus, subject: str) -> None:
        self._bus = bus
        self._subject = subject
        self.late: tuple[Event, Mapping[str, Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, event: Event, **options: Any) -> int:
        if subject_of(event) != self._subject:
            return await self._bus.publish(event, **options)
        self.late = (event, options)
        await asyncio.Event().wait()
        raise AssertionError

    async def resume(self) -> int:
        assert self.late is not None
        event, options = self.late
        return await self._bus.publish(event, **options)


def nodes(count: int) -> list[Any]:
    return [a_node(f"n-{i}.example", uid=f"uid-{i}", resource_version=str(i + 1)) for i in range(count)]


@asynccontextmanager
async def a_ghost(connect: Connect, script: ScriptedNodes) -> AsyncIterator[tuple[Flow, int]]:
    """A leader was paused before it published a Node that is deleted now, and resumes under the next one."""
    flow = Flow()
    paused = PausedBefore(await connect(), f"{OBSERVED_NODE}.{GHOST}")
    async with flow.following(await connect("flow")):
        async with doing(a_watcher(paused, script.source, identity="a").run()):  # type: ignore[arg-type]
            await flow.hears(lambda f: f.snapshots())
            script.put(a_node(GHOST, uid="uid-ghost"))
            await eventually(lambda: paused.late is not None, "it is about to be published")
        script.delete(GHOST)
        async with doing(a_watcher(await connect(), script.source, identity="b", **RESYNC).run()):
            await flow.hears(
                lambda f: f.snapshots()[-1].epoch == 2, "the next leader has published everything"
            )
            sequence = await paused.resume()
            await flow.hears(lambda f: GHOST in f.existing(), "the stream takes it: the subject was empty")
            yield flow, sequence


async def test_a_node_that_was_deleted_while_its_leader_was_paused_is_gone_after_the_next_resync(
    connect: Connect,
):
    script = ScriptedNodes(*nodes(3))
    async with a_ghost(connect, script) as (flow, _):
        await flow.hears(lambda f: isinstance(f.last(GHOST), NodeGone), "the resync removes it", 15)
        assert flow.epoch(GHOST) == 2
        assert flow.existing() == set(script.objects)


async def test_followers_ignore_what_a_former_leader_publishes(connect: Connect):
    heard: list[Event] = []
    table = FlowTable(
        clock=time.monotonic, on_message=lambda message: heard.append(cast(Event, message.event))
    )
    async with (
        doing((await connect("labeler")).follow("labeler", f"{FLOW}.>", table)),
        a_ghost(connect, ScriptedNodes(*nodes(3))) as (flow, sequence),
    ):
        await eventually(lambda: table.sequence >= sequence)
        assert flow.observed(GHOST) not in heard
        later = FlowTable(clock=time.monotonic)
        async with doing((await connect("csr")).follow("csr", f"{FLOW}.>", later)):
            await eventually(lambda: later.complete)
            last = later.last(f"{OBSERVED_NODE}.{GHOST}")
            assert last is None or isinstance(last.event, NodeGone), "neither does who comes later"


async def test_a_node_that_the_watch_has_not_delivered_yet_is_not_said_to_be_gone(connect: Connect):
    script, flow = ScriptedNodes(*nodes(3)), Flow()
    bus = await connect()
    async with flow.following(await connect("flow")):
        async with doing(a_watcher(await connect(), script.source, identity="a").run()):
            await flow.hears(lambda f: f.snapshots())
        async with doing(a_watcher(await connect(), script.source, identity="b", **RESYNC).run()):
            await flow.hears(lambda f: f.snapshots()[-1].epoch == 2)
            script._listeners, deaf = [], script._listeners
            late = script.put(a_node("late.example", uid="uid-late"))
            await bus.publish(said_by_the_first(flow, late), expected_sequence=0)
            await flow.hears(lambda f: f.last("late.example"))
            resyncs = len(flow.snapshots())
            await flow.hears(lambda f: len(f.snapshots()) >= resyncs + 2, "two resyncs later")
            assert script.asked
            assert set(script.asked) == {"late.example"}, "Kubernetes was asked, of that name only"
            assert [type(event) for event in flow.of("late.example")] == [NodeObserved]
            script._listeners = deaf
            script.list_again()
            await flow.hears(lambda f: f.epoch("late.example") == 2)


async def test_a_node_from_before_a_restore_of_etcd_is_gone_once_kubernetes_confirms_it(connect: Connect):
    script, flow = ScriptedNodes(*nodes(3)), Flow()
    bus = await connect()
    async with flow.following(await connect("flow")):
        async with doing(a_watcher(await connect(), script.source, identity="a").run()):
            await flow.hears(lambda f: f.snapshots())
        lost = a_node("lost.example", uid="uid-lost", resource_version=str(script.version + 5000))
        await bus.publish(said_by_the_first(flow, lost), expected_sequence=0)
        async with doing(a_watcher(await connect(), script.source, identity="b").run()):
            await flow.hears(lambda f: f.snapshots()[-1].epoch == 2)
            last = flow.last("lost.example")
            assert isinstance(last, NodeGone)
            assert last.order == ObservedOrder(epoch=2, resource_version=script.version)
            assert script.asked == ["lost.example"]


def said_by_the_first(flow: Flow, node: Any) -> NodeObserved:
    observed = flow.observed("n-0.example")
    order = ObservedOrder(epoch=1, resource_version=int(node.metadata.resource_version))
    return NodeObserved(
        incarnation=observed.incarnation, order=order, node=node, observed_at=observed.observed_at
    )
