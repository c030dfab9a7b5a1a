"""Two leaders on one stream, and a publisher of a former stream whose expected sequence fits."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from libs.common.bus.protocol import Bus
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import Event, Leading, NodeGone, NodeObserved, SnapshotComplete
from libs.common.contract.subjects import FLOW
from libs.common.kube.objects import ServiceCidr
from services.watcher.service import WatcherService
from tests.builders import make_node
from tests.bus_actors import run_during, wait_until
from tests.in_memory_api import InMemoryLeases, LeaseConnection
from tests.watcher_actors import ScriptedKind, ScriptedNodes, WatcherFlow, make_nodes, make_watcher

Connect = Callable[..., Awaitable[Bus]]


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
