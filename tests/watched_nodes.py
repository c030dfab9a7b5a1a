"""Nodes in memory that watchers watch, and the connection of a labeler to them."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from libs.common.contract.node import Node
from libs.common.kube.errors import Unreachable
from libs.common.kube.events import ObjectEvent
from tests.faulty_bus import FaultyBus
from tests.labeler_actors import InMemoryNodes
from tests.watcher_actors import ScriptedNodes

_LOST: Final = Unreachable("the response was lost")
_WRITE_SECONDS: Final = 0.3  # until a write reaches the API server, so that other steps come first


class WatchedNodes(InMemoryNodes):
    """The Nodes of an API server. Each write is also an event of its watch."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = ScriptedNodes()
        self.violations: list[str] = []

    def delete(self, name: str) -> None:
        super().delete(name)
        self.watched.delete(name)

    def _store(self, document: dict[str, Any]) -> Node:
        self._version = self.watched.version
        node = super()._store(document)
        if self._version > self.watched.version:
            self.watched.put(node)
        if node.is_initialized and not node.status.addresses:
            self.violations.append(f"{node.name} is initialized and has no addresses")
        return node


class NodeConnection:
    """Sends the requests of one process, with the faults of its bus; a mutant leaves out their fences."""

    def __init__(self, nodes: InMemoryNodes, bus: FaultyBus, *, has_fences: bool) -> None:
        self._nodes = nodes
        self._has_fences = has_fences
        self._send = bus.send

    async def get_node(self, name: str) -> Node:
        return await self._send(lambda: self._nodes.get_node(name), _LOST)

    async def patch_node(
        self, name: str, json_patch: Sequence[dict[str, Any]], /, *, is_urgent: bool = False
    ) -> Node:
        if not self._has_fences:
            json_patch = [operation for operation in json_patch if operation["op"] != "test"]
        await asyncio.sleep(_WRITE_SECONDS)
        return await self._send(lambda: self._nodes.patch_node(name, json_patch, is_urgent=is_urgent), _LOST)

    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any], /) -> Node:
        if not self._has_fences:
            strategic_merge = {key: part for key, part in strategic_merge.items() if key != "metadata"}
        await asyncio.sleep(_WRITE_SECONDS)
        return await self._send(lambda: self._nodes.patch_node_status(name, strategic_merge), _LOST)

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> None:
        await self._send(lambda: self._nodes.create_event(event, now=now), _LOST)
