"""The Nodes that may be targets of load balancers, and whether the table may lack one."""

from collections.abc import Hashable
from functools import lru_cache
from typing import Final

from libs.clouds.balancers import ADDRESS_TYPES
from libs.common.cloud_config.model import NodeSelectorTerm
from libs.common.contract.node import Node
from services.cloud.core.balancers.select_targets import (
    AUTOSCALER_TAINT,
    TargetRules,
    TargetSelection,
    select_targets,
)

_MAX_DELETED: Final = 2000
_MAX_SELECTIONS: Final = 64  # most Services have no node selector, and share one


class TargetNodes:
    """The Nodes by name, and those that were seen deleted.

    A message that expires in the stream deletes no Node: the watcher was away. The table is incomplete
    then, until the next snapshot, and no unknown target is removed.
    """

    def __init__(self, rules: TargetRules) -> None:
        self._rules = rules
        self._nodes: dict[str, Node] = {}
        self._deleted: dict[str, Node] = {}  # by uid, the most recent last
        self._is_complete = False
        # Each step of each Service needs it, and a change of Nodes is rare: 7 ms for 1000 Nodes.
        self._select = lru_cache(maxsize=_MAX_SELECTIONS)(self._compute_selection)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All Nodes, of any cloud."""
        return tuple(self._nodes.values())

    @property
    def is_complete(self) -> bool:
        """Whether no Node is missing, if the stream is followed."""
        return self._is_complete

    def upsert(self, node: Node) -> bool:
        """Store the Node's current state; return whether it may change targets."""
        before, self._nodes[node.name] = self._nodes.get(node.name), node
        if before is not None and before.uid != node.uid:
            self._note_deleted(before)
        self._deleted.pop(node.uid, None)
        is_relevant = before is None or _list_relevant_fields(before) != _list_relevant_fields(node)
        if is_relevant:
            self._select.cache_clear()
        return is_relevant

    def remove(self, name: str) -> bool:
        """Remove a Node that was seen deleted; return whether it was there."""
        node = self._nodes.pop(name, None)
        if node is not None:
            self._note_deleted(node)
            self._select.cache_clear()
        return node is not None

    def mark_expired(self, uid: str) -> None:
        """Record that the stream has dropped the last message about this Node; the Node may exist."""
        self._deleted.pop(uid, None)
        self._is_complete = False
        self._select.cache_clear()

    def mark_complete(self) -> bool:
        """Record a snapshot: the watcher has published all Nodes. Return whether it may change targets."""
        before, self._is_complete = self._is_complete, True
        return not before

    def clear(self) -> None:
        """Forget all Nodes that exist: of another stream."""
        self._nodes.clear()
        self._is_complete = False
        self._select.cache_clear()

    def select(
        self,
        selector: tuple[NodeSelectorTerm, ...] | None,
        address_types: tuple[str, ...] | None = ADDRESS_TYPES,
        *,
        is_followed: bool,
    ) -> TargetSelection:
        """Return the targets; `is_followed`: whether the stream's messages are all known."""
        return self._select(selector, address_types, is_followed and self._is_complete)

    def _compute_selection(
        self,
        selector: tuple[NodeSelectorTerm, ...] | None,
        address_types: tuple[str, ...] | None,
        is_complete: bool,
    ) -> TargetSelection:
        return select_targets(
            self._nodes.values(),
            deleted=self._deleted.values(),
            is_complete=is_complete,
            selector=selector,
            address_types=address_types,
            rules=self._rules,
        )

    def _note_deleted(self, node: Node) -> None:
        self._deleted[node.uid] = node
        if len(self._deleted) > _MAX_DELETED:
            del self._deleted[next(iter(self._deleted))]


def _list_relevant_fields(node: Node) -> Hashable:
    is_drained = any(taint.key == AUTOSCALER_TAINT for taint in node.spec.taints)
    return (
        node.uid,
        node.spec.provider_id,
        tuple(sorted(node.labels.items())),
        node.metadata.deletion_timestamp,
        is_drained,
        node.status.addresses,
    )
