"""Sets and removes the shutdown taint: one fenced patch, and one more try if somebody wrote meanwhile."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import ownership_labels
from libs.common.contract.node import Node
from libs.common.contract.node_patch import build_node_patch
from libs.common.kube.errors import FenceFailed, NotFound
from libs.common.observability import metrics
from services.lifecycle.decide import why_excluded
from services.lifecycle.evidence import MachineReport
from services.lifecycle.shutdown_taint import ShutdownTaintChange, plan_shutdown_taint

log = logging.getLogger(__name__)


class NodePatchClient(Protocol):
    """What is needed of `kube_api.KubeApi`."""

    async def get_node(self, name: str) -> Node: ...

    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]]) -> Node: ...


class ShutdownTaintWriter:
    """Writes what `plan_shutdown_taint` wants; a dry run writes nothing."""

    def __init__(
        self, kube: NodePatchClient, *, ownership: Callable[[], Ownership], is_dry_run: bool
    ) -> None:
        self._kube = kube
        self._ownership = ownership
        self._is_dry_run = is_dry_run
        self._written: dict[str, Node] = {}  # as the API server answered: the watcher tells it a little later

    async def apply(self, node: Node, report: MachineReport | None) -> ShutdownTaintChange | None:
        """What was changed, None if nothing was. Raises KubeError, FenceFailed if it failed twice."""
        written = self._written.get(node.name)
        if (
            written is not None
            and written.uid == node.uid
            and written.resource_version_number > node.resource_version_number
        ):
            node = written
        change = self._plan_change(node, report)
        if change is None or self._is_dry_run:
            return change
        try:
            try:
                await self._patch(node, change)
            except FenceFailed:
                return await self._retry_on_latest(node, report)
        except NotFound:
            return None
        return change

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._written.pop(name, None)

    async def _retry_on_latest(
        self, observed: Node, report: MachineReport | None
    ) -> ShutdownTaintChange | None:
        node = await self._kube.get_node(observed.name)
        change = self._plan_change(node, report) if node.uid == observed.uid else None
        if change is not None:
            await self._patch(node, change)
        return change

    def _plan_change(self, node: Node, report: MachineReport | None) -> ShutdownTaintChange | None:
        """What is to be changed on one that is ours, as it is now."""
        return None if why_excluded(self._ownership(), node) else plan_shutdown_taint(node, report)

    async def _patch(self, node: Node, change: ShutdownTaintChange) -> None:
        changes = msgspec.structs.replace(change.changes, guarded_labels=ownership_labels(self._ownership()))
        self._written[node.name] = await self._kube.patch_node(node.name, build_node_patch(node, changes))
        metrics.LIFECYCLE_SHUTDOWN_TAINTS.labels("set" if change.is_set else "removed").inc()
        log.info(change.summary, extra={"node": node.name, "reason": change.reason})
