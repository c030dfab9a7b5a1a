"""The labeler plans no echo of its own writes, and writes joining Nodes first."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from libs.common.bus.protocol import StreamPosition
from libs.common.contract.events import NodeEnriched
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeCondition
from libs.common.kube.errors import FenceFailed
from libs.common.kube.transport import CONNECTIONS
from services.labeler.core.own_writes import ENTRY_TTL_SECONDS, OwnWrites
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.node_writer import NodeWriter, Planner
from tests.builders import NOW, make_facts, make_node, make_node_observed
from tests.bus_actors import wait_until
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.labeler_actors import InMemoryNodes, run_labeler, wait_until_rolled_out
from tests.node_plans import compile_one_rule, make_planner

FACTS = make_facts(platform="hcloud", provider_id="hcloud://7", region="fsn1", zone="fsn1-dc14")
OWN_LABEL = "topology.kubernetes.io/region"


async def join(flow: FlowActor) -> None:
    await flow.enrich(make_node(), FACTS)
    await flow.wait_for_decision("web-1", "initialized")


# ---- a restored etcd


async def test_a_write_that_a_restored_etcd_has_lost_is_repeated_when_the_next_epoch_begins(flow: FlowActor):
    backup, other = make_node(), make_node("web-2")
    kube, clock = InMemoryNodes(backup, other), ManualClock()
    async with run_labeler(flow.url, kube, clock=clock) as service:
        await flow.enrich(other, make_facts(node_name="web-2", node_ip="10.0.0.6"))
        await flow.wait_for_decision("web-2", "initialized")
        clock.advance(ENTRY_TTL_SECONDS + 1)
        await flow.publish_leading()
        await join(flow)
        kube.restore(backup)
        # The stream has this state already, so metadata publishes nothing.
        await flow.bus.publish(make_node_observed(backup, stream_id=flow.stream_id, epoch=2))
        await wait_until(lambda: kube.node("web-1").is_initialized, "initialized again")
        await wait_until_rolled_out(service)
        assert service._rollout._pass.nodes == 1, "the stream has long observed the write to web-2"
    assert kube.list_patches() == ["nodes/status", "nodes"] * 3


async def test_a_lower_epoch_begins_after_the_stream_has_lost_its_end(flow: FlowActor):
    backup = make_node()
    kube = InMemoryNodes(backup)
    async with run_labeler(flow.url, kube) as service:
        cache = service._stream_cache
        observed = await flow.publish_node(backup)
        await wait_until(lambda: cache.sequence >= observed, "observed")
        kept = tuple(cache._messages.values())
        await flow.bus.publish(make_node_observed(backup, stream_id=flow.stream_id, epoch=7))
        await flow.enrich(backup, FACTS, observed=observed)
        await flow.wait_for_decision("web-1", "initialized")
        kept += tuple(each for each in cache._messages.values() if isinstance(each.event, NodeEnriched))
        kube.restore(backup)
        cache.start_replay(StreamPosition(stream_id=flow.stream_id, last_sequence=observed))
        for each in kept:
            cache.apply(each)
        cache.finish_replay()
        await flow.bus.publish(make_node_observed(backup, stream_id=flow.stream_id, epoch=2))
        await wait_until(lambda: kube.node("web-1").is_initialized, "initialized again")


async def test_a_restored_node_is_not_taken_for_the_write_of_another_replica(flow: FlowActor):
    moved = make_facts(platform="hcloud", provider_id="hcloud://7", region="hel1", zone="hel1-dc2")
    kube = InMemoryNodes(make_node())
    async with run_labeler(flow.url, kube):  # its rules are old, so it could wait for newer ones
        await join(flow)
        backup = kube.node("web-1")
        await flow.enrich(backup, moved)
        await flow.wait_for_decision("web-1", "updated")
        kube.restore(backup)
        await flow.bus.publish(make_node_observed(backup, stream_id=flow.stream_id, epoch=2))
        await wait_until(lambda: kube.node("web-1").labels[OWN_LABEL] == "hel1", "updated again")


async def test_the_taint_stays_if_the_first_write_shows_that_planned_addresses_are_missing():
    backup = make_node("web-1")
    kube = InMemoryNodes(backup)
    writer = make_writer(kube)
    await writer.apply(backup, planner(backup))
    condition = NodeCondition(type=BLOCKED_CONDITION, status="True")
    written = kube.node("web-1")
    blocked = replace(written, status=replace(written.status, conditions=(condition,)))
    kube.restore(backup)
    with pytest.raises(FenceFailed):
        await writer.apply(blocked, planner(blocked))
    assert not kube.node("web-1").is_initialized
    await writer.apply(backup, planner(backup))
    assert kube.node("web-1").is_initialized
    assert kube.node("web-1").status.addresses == written.status.addresses


class SlowNodes(InMemoryNodes):
    """An API server that answers one write for each `answer`."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__(*nodes)
        self.arrived: list[tuple[str, str]] = []  # (resource, name)
        self.admit = self._arrive
        self._answers = asyncio.Semaphore(0)

    def answer(self, writes: int = 1) -> None:
        for _ in range(writes):
            self._answers.release()

    async def _arrive(self, resource: str, name: str, _patch: Any) -> None:
        self.arrived.append((resource, name))
        await self._answers.acquire()


def make_writer(kube: InMemoryNodes) -> NodeWriter:
    return NodeWriter(kube, OwnWrites(clock=lambda: 0.0), now=lambda: NOW, observe_only=False)


def planner(node: Node, config: ClusterConfig | None = None) -> Planner:
    return make_planner(make_facts(node_name=node.name), config or ClusterConfig())


async def test_a_node_that_has_its_addresses_is_initialized_before_others_get_theirs():
    nodes = [make_node(f"n{number}", uid=f"uid-{number}") for number in range(CONNECTIONS)]
    kube = SlowNodes(*nodes)
    writer = make_writer(kube)
    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            tasks.create_task(writer.apply(node, planner(node)))
        at_once = CONNECTIONS - 4
        await wait_until(lambda: len(kube.arrived) == at_once, "as many writes as may be at once")
        assert {resource for resource, _ in kube.arrived} == {"nodes/status"}
        kube.answer()
        # The freed slot goes to the next Node in order. The first Node's second write is the next of all.
        await wait_until(lambda: len(kube.arrived) == at_once + 1, "the next write")
        kube.answer()
        await wait_until(lambda: len(kube.arrived) == at_once + 2, "the write after it")
        kube.answer(2 * CONNECTIONS)
    assert kube.arrived[at_once:][:2] == [("nodes/status", f"n{at_once}"), ("nodes", "n0")]
    assert all(kube.node(node.name).is_initialized for node in nodes)


async def test_only_the_write_that_removes_the_uninitialized_taint_is_urgent():
    node = make_node("web-1")
    kube = InMemoryNodes(node)
    writer = make_writer(kube)
    await writer.apply(node, planner(node))
    assert kube.urgent_patches == ["web-1"]
    labels = compile_one_rule(labels="{example.com/team: web}")
    await writer.apply(kube.node("web-1"), planner(node, labels))
    assert kube.node("web-1").labels["example.com/team"] == "web"
    assert kube.urgent_patches == ["web-1"]
