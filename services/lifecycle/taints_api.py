"""Sets and removes the shutdown taint: one fenced patch, and one more try if somebody wrote meanwhile."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from libs.common import metrics
from libs.common.cloud_config.rule import Ownership
from libs.common.kube_api.errors import FenceFailed, NotFound
from libs.common.node import Node
from libs.common.ownership import deciding_labels
from libs.common.patch import node_patch
from services.lifecycle.decide import not_ours
from services.lifecycle.evidence import Word
from services.lifecycle.shutdown import Change, shutdown_change

log = logging.getLogger(__name__)


class Nodes(Protocol):
    """What is needed of `kube_api.KubeApi`."""

    async def get_node(self, name: str) -> Node: ...

    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]]) -> Node: ...


class ShutdownTaints:
    """Writes what `shutdown_change` wants; a dry run writes nothing."""

    def __init__(self, kube: Nodes, *, ownership: Callable[[], Ownership], dry: bool) -> None:
        self._kube = kube
        self._ownership = ownership
        self._dry = dry
        self._written: dict[str, Node] = {}  # as the API server answered: the watcher tells it a little later

    async def apply(self, node: Node, word: Word | None) -> Change | None:
        """What was changed, None if nothing was. Raises KubeError, FenceFailed if it failed twice."""
        written = self._written.get(node.name)
        if written is not None and written.uid == node.uid and written.version > node.version:
            node = written
        change = self._change(node, word)
        if change is None or self._dry:
            return change
        try:
            try:
                await self._patch(node, change)
            except FenceFailed:
                return await self._once_more(node, word)
        except NotFound:
            return None
        return change

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._written.pop(name, None)

    async def _once_more(self, seen: Node, word: Word | None) -> Change | None:
        node = await self._kube.get_node(seen.name)
        change = self._change(node, word) if node.uid == seen.uid else None
        if change is not None:
            await self._patch(node, change)
        return change

    def _change(self, node: Node, word: Word | None) -> Change | None:
        """What is to be changed on one that is ours, as it is now."""
        return None if not_ours(self._ownership(), node) else shutdown_change(node, word)

    async def _patch(self, node: Node, change: Change) -> None:
        changes = msgspec.structs.replace(change.changes, held_labels=deciding_labels(self._ownership()))
        self._written[node.name] = await self._kube.patch_node(node.name, node_patch(node, changes))
        metrics.LIFECYCLE_SHUTDOWN_TAINTS.labels("set" if change.is_set else "removed").inc()
        log.info(change.what, extra={"node": node.name, "reason": change.reason})
