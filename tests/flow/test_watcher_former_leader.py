"""Two leaders on one stream: a paused one publishes after another took over, or both believe to lead."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from libs.common.bus.protocol import Bus, Follower
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import (
    Event,
    Leading,
    NodeGone,
    NodeObserved,
    ObservationOrder,
    SnapshotComplete,
)
from libs.common.contract.subjects import FLOW, OBSERVED_NODE, subject_of
from libs.common.kube.objects import ServiceCidr
from services.watcher.service import WatcherService
from tests.builders import NOW, make_node
from tests.bus_actors import run_during, wait_until
from tests.faulty_bus import HeldFollower
from tests.in_memory_api import InMemoryLeases, LeaseConnection
from tests.watcher_actors import ScriptedKind, ScriptedNodes, WatcherFlow, make_nodes, make_watcher

Connect = Callable[..., Awaitable[Bus]]
GHOST = "ghost.example"
RESYNC: dict[str, Any] = {"resync_seconds": 1.0}


@asynccontextmanager
async def a_former_leader(connect: Connect) -> AsyncIterator[tuple[ScriptedNodes, WatcherFlow]]:
    """A leader published three Nodes and stopped."""
    script, flow = ScriptedNodes(*make_nodes(3)), WatcherFlow()
    async with flow.follow(await connect("flow")):
        async with run_during(make_watcher(await connect(), script.source, identity="a").run()):
            await flow.wait_for(lambda f: f.snapshots())
        yield script, flow


async def test_a_node_that_the_watch_has_not_delivered_yet_is_not_said_to_be_gone(connect: Connect):
    bus = await connect()
    async with (
        a_former_leader(connect) as (script, flow),
        run_during(make_watcher(await connect(), script.source, identity="b", **RESYNC).run()),
    ):
        await flow.wait_for(lambda f: f.snapshots()[-1].epoch == 2)
        script._listeners, deaf = [], script._listeners
        late = script.put(make_node("late.example", uid="uid-late"))
        await bus.publish(said_by_the_first(flow, late), expected_sequence=0)
        await flow.wait_for(lambda f: f.last("late.example"))
        resyncs = len(flow.snapshots())
        await flow.wait_for(lambda f: len(f.snapshots()) >= resyncs + 2, "two resyncs later")
        assert script.asked
        assert set(script.asked) == {"late.example"}, "Kubernetes was asked, of that name only"
        assert [type(event) for event in flow.list_node_events("late.example")] == [NodeObserved]
        script._listeners = deaf
        script.list_again()
        await flow.wait_for(lambda f: f.epoch("late.example") == 2)


async def test_a_node_from_before_a_restore_of_etcd_is_gone_once_kubernetes_confirms_it(connect: Connect):
    bus = await connect()
    async with a_former_leader(connect) as (script, flow):
        lost = make_node("lost.example", uid="uid-lost", resource_version=str(script.version + 5000))
        await bus.publish(said_by_the_first(flow, lost), expected_sequence=0)
        async with run_during(make_watcher(await connect(), script.source, identity="b").run()):
            await flow.wait_for(lambda f: f.snapshots()[-1].epoch == 2)
            last = flow.last("lost.example")
            assert isinstance(last, NodeGone)
            assert last.order == ObservationOrder(epoch=2, resource_version=script.version)
            assert script.asked == ["lost.example"]


class LeadsBefore:
    """The bus of the next leader: a message of the former leader arrives right behind its first Leading."""

    def __init__(self, bus: Bus, late: Callable[[], Awaitable[None]]) -> None:
        self._bus = bus
        self._late = [late]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, event: Event, **options: Any) -> int:
        sequence = await self._bus.publish(event, **options)
        if isinstance(event, Leading) and self._late:
            await self._late.pop()()
        return sequence


async def test_a_deletion_that_a_former_leader_publishes_late_reaches_followers(connect: Connect):
    script, flow = ScriptedNodes(*make_nodes(3)), WatcherFlow()
    table, deleted = StreamCache(clock=time.monotonic), "n-0.example"
    former = await connect()

    async def late() -> None:
        order = ObservationOrder(epoch=1, resource_version=script.version)
        observed = flow.observed(deleted)
        message = NodeGone(
            stream_id=observed.stream_id, order=order, name=deleted, uid="uid-0", observed_at=NOW
        )
        last = max(m.sequence for m in flow.messages if m.subject == subject_of(message))
        sequence = await former.publish(message, expected_sequence=last)
        await wait_until(lambda: table.sequence >= sequence)

    async with (
        flow.follow(await connect("flow")),
        run_during((await connect("labeler")).follow("labeler", f"{FLOW}.>", table)),
    ):
        async with run_during(make_watcher(await connect(), script.source, identity="a").run()):
            await flow.wait_for(lambda f: f.snapshots())
        await wait_until(lambda: table.get(f"{OBSERVED_NODE}.{deleted}") is not None)
        script.delete(deleted)
        bus = LeadsBefore(await connect(), late)
        async with run_during(make_watcher(bus, script.source, identity="b").run()):  # type: ignore[arg-type]
            await flow.wait_for(lambda f: f.snapshots()[-1].epoch == 2)
            await wait_until(lambda: gone_for(table, deleted), "followers receive the deletion")
            assert [event.order.epoch for event in flow.list_node_events(deleted)] == [1, 1, 2]


class LagsBehind:
    """The bus of the next leader: a message of the former leader arrives just before its first Leading.

    Its follower receives both half a second later.
    """

    def __init__(self, bus: Bus, late: Callable[[], Awaitable[None]]) -> None:
        self._bus = bus
        self._late = [late]
        self._delivers = asyncio.Event()
        self._delivers.set()
        self._followers: list[HeldFollower] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, event: Event, **options: Any) -> int:
        if isinstance(event, Leading) and self._late:
            self._delivers.clear()
            asyncio.get_running_loop().call_later(0.5, self._deliver)
            await self._late.pop()()
        return await self._bus.publish(event, **options)

    async def follow(self, name: str, filter_subject: str, follower: Follower, **options: Any) -> None:
        held = HeldFollower(follower, self._delivers)
        self._followers.append(held)
        await self._bus.follow(name, filter_subject, held, **options)

    def _deliver(self) -> None:
        self._delivers.set()
        for follower in self._followers:
            follower.deliver_held()


async def test_a_round_includes_what_a_former_leader_publishes_just_before_it(connect: Connect):
    async with a_former_leader(connect) as (script, flow):
        former = await connect()
        ghost = make_node(GHOST, uid="uid-ghost", resource_version=str(script.version))

        async def late() -> None:
            await former.publish(said_by_the_first(flow, ghost), expected_sequence=0)

        bus = LagsBehind(await connect(), late)
        async with run_during(make_watcher(bus, script.source, identity="b").run()):  # type: ignore[arg-type]
            await flow.wait_for(lambda f: f.snapshots()[-1].epoch == 2)
            assert flow.epoch(GHOST) == 2, "the snapshot comes after the deletion"
            assert isinstance(flow.last(GHOST), NodeGone)


def gone_for(table: StreamCache, name: str) -> bool:
    last = table.get(f"{OBSERVED_NODE}.{name}")
    return last is not None and isinstance(last.event, NodeGone)


def said_by_the_first(flow: WatcherFlow, node: Any) -> NodeObserved:
    observed = flow.observed("n-0.example")
    order = ObservationOrder(epoch=1, resource_version=int(node.metadata.resource_version))
    return NodeObserved(
        stream_id=observed.stream_id, order=order, node=node, observed_at=observed.observed_at
    )


def make_candidate(bus: Bus, script: ScriptedNodes, name: str) -> WatcherService:
    """A watcher of one installation, whose Lease no other watcher takes.

    It is silent only after 6 s, so a short stall of the machine does not let the other one lead.
    """
    kube: Any = LeaseConnection(InMemoryLeases())
    return make_watcher(
        bus,
        script.source,
        service_cidrs=ScriptedKind[ServiceCidr]().source,
        kube=kube,
        identity=name,
        controllers=("cloud-node",),
        lease_duration_seconds=9.0,
        renew_deadline_seconds=6.0,
    )


def has_conflict(watcher: WatcherService, name: str) -> bool:
    text = f"{name} publishes to this stream, too, and has another Lease"
    return any(text in problem for problem in watcher.problems())


def leads_alone(flow: WatcherFlow) -> bool:
    """Whether the last four heartbeats are those of one epoch of the second leader."""
    last = {(leading.holder, leading.epoch) for leading in flow.leadings()[-4:]}
    return len(flow.leadings()) >= 4 and len(last) == 1 and last.pop()[0] == "second"


async def test_one_of_two_leaders_with_their_own_leases_waits_until_the_other_one_is_silent(
    connect: Connect,
):
    script, flow = ScriptedNodes(*make_nodes(3)), WatcherFlow()
    first, second = [make_candidate(await connect(), script, name) for name in ("first", "second")]
    async with flow.follow(await connect("flow")), run_during(first.run()):
        await flow.wait_for(lambda f: f.snapshots(), "the first leads")
        async with run_during(second.run()):
            await wait_until(lambda: has_conflict(first, "second"), "the first waits")
            await flow.wait_for(leads_alone, "the second leads on")
            settled = flow.leadings()[-1]
            assert has_conflict(first, "second")
            assert not second.problems()
        script.put(make_node("late.example", uid="uid-late"))
        await flow.wait_for(lambda f: f.existing() == set(script.objects), "the first leads again")
        last = flow.leadings()[-1]
        assert isinstance(last, Leading)
        assert (last.holder, last.epoch > settled.epoch) == ("first", True)
        await wait_until(lambda: not first.problems(), "the first is ready")


@pytest.mark.parametrize("kind", [NodeObserved, NodeGone, SnapshotComplete])
async def test_the_leader_publishes_again_what_a_message_for_a_former_stream_replaces(
    connect: Connect, kind: type[Event]
):
    script, flow = ScriptedNodes(make_node("stays"), make_node("goes", uid="uid-goes")), WatcherFlow()
    async with (
        flow.follow(await connect("flow")),
        run_during(make_watcher(await connect(), script.source).run()),
    ):
        await flow.wait_for(lambda f: f.snapshots())
        script.delete("goes")
        await flow.wait_for(lambda f: isinstance(f.last("goes"), NodeGone))
        last = {message.subject: message for message in flow.messages}.values()
        valid = next(message for message in last if isinstance(message.event, kind))
        assert isinstance(valid.event, NodeObserved | NodeGone | SnapshotComplete)
        event = msgspec.structs.replace(valid.event, stream_id="the former one")
        late = await (await connect()).publish(event, expected_sequence=valid.sequence)
        await flow.wait_for(lambda f: f.messages[-1].sequence >= late, "the stream takes it")
        later = StreamCache(clock=time.monotonic)
        async with run_during((await connect("csr")).follow("csr", f"{FLOW}.>", later)):
            await wait_until(
                lambda: isinstance(later.get_event(valid.subject), kind), "the leader publishes its own again"
            )
            assert later.sequence > late


@pytest.mark.parametrize("name", ["stays", "ghost"])
@pytest.mark.parametrize("changes", [{"stream_id": "the former one"}, {"observed_at": "in a newer format"}])
async def test_the_leader_says_what_is_true_of_a_node_whose_last_message_nobody_can_use(
    connect: Connect, name: str, changes: dict[str, Any]
):
    """Until then, other Nodes get no providerID, certificate or block: that Node might have the same."""
    script, flow = ScriptedNodes(make_node("stays")), WatcherFlow()
    async with (
        flow.follow(await connect("flow")),
        run_during(make_watcher(await connect(), script.source).run()),
    ):
        await flow.wait_for(lambda f: f.snapshots())
        valid = flow.observed("stays")
        event = msgspec.structs.replace(valid, **{"node": make_node(name)} | changes)
        before = max((m.sequence for m in flow.messages if m.subject == f"{OBSERVED_NODE}.{name}"), default=0)
        late = await (await connect()).publish(event, expected_sequence=before)
        await flow.wait_for(lambda f: f.messages[-1].sequence > late, "the leader publishes after it")
        later = StreamCache(clock=time.monotonic)
        async with run_during((await connect("csr")).follow("csr", f"{FLOW}.>", later)):
            await wait_until(lambda: later.is_complete)
            assert later.list_unknown(OBSERVED_NODE) == []
            expected = NodeObserved if name == "stays" else NodeGone
            assert isinstance(later.get_event(f"{OBSERVED_NODE}.{name}"), expected)
