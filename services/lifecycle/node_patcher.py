"""Writes a planned change of one Node with a fenced patch; retries once if the Node has changed."""

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import ownership_labels
from libs.common.contract.node import Node
from libs.common.contract.node_patch import build_node_patch
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import FenceFailed, NotFound
from services.lifecycle.core.decide import explain_exclusion
from services.lifecycle.core.instance_record import InstanceRecordChange
from services.lifecycle.core.shutdown_taint import ShutdownTaintChange

Change = TypeVar("Change", ShutdownTaintChange, InstanceRecordChange)

log = logging.getLogger(__name__)


@dataclass(eq=False)
class NodePatcher:
    """Plans on the observed state of a Node, and patches that state only; else on what Kubernetes has."""

    kube: KubeApi
    _: KW_ONLY
    ownership: Callable[[], Ownership]

    async def apply(
        self, node: Node, plan: Callable[[Node], Change | None], *, is_dry_run: bool
    ) -> Change | None:
        """Apply and return the change, None if there is none. Raises KubeError; FenceFailed: failed twice."""
        change = self._plan_change(node, plan)
        if change is None or is_dry_run:
            return change
        try:
            try:
                await self._patch(node, change)
            except FenceFailed:
                return await self._retry_on_latest(node, plan)
        except NotFound:
            return None
        return change

    async def _retry_on_latest(self, observed: Node, plan: Callable[[Node], Change | None]) -> Change | None:
        node = await self.kube.get_node(observed.name)
        change = self._plan_change(node, plan) if node.uid == observed.uid else None
        if change is not None:
            await self._patch(node, change)
        return change

    def _plan_change(self, node: Node, plan: Callable[[Node], Change | None]) -> Change | None:
        """Return the change of a Node that lifecycle manages; None for other Nodes."""
        return None if explain_exclusion(self.ownership(), node) else plan(node)

    async def _patch(self, node: Node, change: ShutdownTaintChange | InstanceRecordChange) -> None:
        changes = msgspec.structs.replace(change.changes, guarded_labels=ownership_labels(self.ownership()))
        operations = build_node_patch(node, changes)
        if isinstance(change, InstanceRecordChange) and operations:
            # The record names the systemUUID, which a kubelet may change meanwhile.
            version = node.metadata.resource_version
            operations = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *operations]
        await self.kube.patch_node(node.name, operations)
        log.info(change.summary, extra={"node": node.name, "reason": change.reason})
