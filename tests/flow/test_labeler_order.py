"""The order of the labeler's writes when more Nodes join than it may write at once."""

import asyncio
from collections.abc import Sequence
from typing import Any

from libs.common.contract.node import Node
from libs.common.kube.transport import CONNECTIONS
from services.labeler.mutation_cache import MutationCache
from services.labeler.node_writer import NodeWriter
from services.labeler.plan import ClusterConfig
from tests.builders import NOW, make_facts, make_node
from tests.bus_actors import wait_until
from tests.labeler_actors import InMemoryNodes
from tests.node_plans import FactsPlanner, compile_one_rule


class SlowNodes(InMemoryNodes):
    """An API server that answers one write for each `answer`."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__(*nodes)
        self.arrived: list[tuple[str, str]] = []  # (resource, name)
        self._answers = asyncio.Semaphore(0)

    def answer(self, writes: int = 1) -> None:
        for _ in range(writes):
            self._answers.release()

    async def patch_node(
        self, name: str, json_patch: Sequence[dict[str, Any]], /, *, is_urgent: bool = False
    ) -> Node:
        await self._arrive("nodes", name)
        return await super().patch_node(name, json_patch, is_urgent=is_urgent)

    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any], /) -> Node:
        await self._arrive("nodes/status", name)
        return await super().patch_node_status(name, strategic_merge)

    async def _arrive(self, resource: str, name: str) -> None:
        self.arrived.append((resource, name))
        await self._answers.acquire()


def make_writer(kube: InMemoryNodes) -> NodeWriter:
    return NodeWriter(kube, MutationCache(clock=lambda: 0.0), now=lambda: NOW, observe_only=False)


def planner(node: Node, config: ClusterConfig | None = None) -> FactsPlanner:
    return FactsPlanner(make_facts(node_name=node.name), config or ClusterConfig())


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
