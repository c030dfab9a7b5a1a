"""A reflector of Nodes, and what it has told so far."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from libs.common.contract.node import Node
from libs.common.kube.api import NODES, KubeApi
from libs.common.kube.objects import UnreadableObject
from libs.common.kube.reflector import Reflector
from libs.common.kube.watch_events import Changed, Deleted, ListSnapshot, WatchEvent
from tests.bus_actors import run_during


class NodeFollower:
    """Keeps what a reflector tells, and what the Nodes are by it."""

    def __init__(self) -> None:
        self.events: list[WatchEvent[Node]] = []
        self.nodes: dict[str, Node] = {}
        self.unreadable: list[UnreadableObject] = []
        self.errors: list[Exception] = []

    async def handle(self, happening: WatchEvent[Node]) -> None:
        self.events.append(happening)
        match happening:
            case ListSnapshot():
                self.nodes = {node.name: node for node in happening.items}
            case Changed():
                self.nodes[happening.item.name] = happening.item
            case Deleted():
                self.nodes.pop(happening.item.name, None)

    def count(self, kind: type[Any]) -> int:
        return sum(isinstance(happening, kind) for happening in self.events)


@asynccontextmanager
async def follow_nodes(api: KubeApi, **options: Any) -> AsyncIterator[tuple[NodeFollower, Reflector[Node]]]:
    follower = NodeFollower()
    reflector = Reflector(
        api,
        NODES,
        on_unreadable=follower.unreadable.append,
        on_failure=follower.errors.append,
        **({"jitter": lambda: 0.0} | options),
    )
    async with run_during(reflector.run(follower.handle)):
        yield follower, reflector
