"""The Nodes that wait for pod CIDRs: reason, full pools, and start of the wait."""

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from services.ipam.pool_selection import Pool

NOT_MANAGED: Final = "not-ours"  # another controller's Node; it gets no Event and waits for another file
WRITTEN: Final = "written"  # its pod CIDRs were written or listed a moment ago, and are not observed yet
REMOVED: Final = "removed"  # it was observed with pod CIDRs and now has none: etcd was restored from a backup
LONG_WAIT_SECONDS: Final = 30.0  # a longer wait for one reason is recorded on the Node


class WaitingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node that got no pod CIDRs yet."""

    name: str
    uid: str
    # "waiting": a fact is missing; "unserved": an operator must change the configuration; or one of the above
    outcome: str
    reason: str
    full_pools: tuple[Pool, ...] = ()  # pools of this Node without a free block
    waiting_since: float  # start of the wait for this reason, in monotonic seconds
    retry_at: float = math.inf  # when a Node without a message is processed again, in monotonic seconds


class WaitingNodes:
    """Stores waiting Nodes by name. A wait continues while Node and reason are the same."""

    def __init__(self) -> None:
        self.by_name: dict[str, WaitingNode] = {}
        self._reported: set[tuple[str, str]] = set()  # name and reason

    def add(self, node: WaitingNode) -> None:
        """Add a Node that got no pod CIDRs."""
        before = self.by_name.get(node.name)
        if before is not None and (before.uid, before.reason) == (node.uid, node.reason):
            node = msgspec.structs.replace(node, waiting_since=before.waiting_since)
        elif before is not None:
            self._reported.discard((before.name, before.reason))
        self.by_name[node.name] = node

    def remove(self, name: str) -> WaitingNode | None:
        """Remove a Node that has pod CIDRs or is gone; return its wait, None if it did not wait."""
        node = self.by_name.pop(name, None)
        if node is not None:
            self._reported.discard((name, node.reason))
        return node

    def group_by_full_pools(self) -> dict[tuple[Pool, ...], list[str]]:
        """Return the names of waiting Nodes by their full pools."""
        found: dict[tuple[Pool, ...], list[str]] = {}
        for node in self.by_name.values():
            if node.full_pools:
                found.setdefault(node.full_pools, []).append(node.name)
        return found

    def take_unreported(self, at: float) -> Iterator[WaitingNode]:
        """Yield the Nodes with a long wait, each once until its reason changes."""
        for node in list(self.by_name.values()):
            key = (node.name, node.reason)
            if node.outcome in (NOT_MANAGED, WRITTEN, REMOVED):
                continue
            if at - node.waiting_since >= LONG_WAIT_SECONDS and key not in self._reported:
                self._reported.add(key)
                yield node

    def clear(self) -> None:
        """Drop everything."""
        self.by_name.clear()
        self._reported.clear()
