"""The Nodes that wait for pod CIDRs, for what, and since when."""

from collections.abc import Iterator
from typing import Final

import msgspec

from services.ipam.pool_selection import Pool

NOT_MANAGED: Final = (
    "not-ours"  # the file has it be another's: it waits for another file, and is told nothing
)
LONG_WAIT_SECONDS: Final = 30.0  # a wait of one reason that lasts longer is told on the Node


class WaitingNode(msgspec.Struct, frozen=True, kw_only=True):
    """One Node that could not be served."""

    name: str
    uid: str
    # "waiting": something is not known yet; "unserved": somebody has to change something; NOT_OURS
    outcome: str
    reason: str
    full_pools: tuple[Pool, ...] = ()  # it wants a block of these, and they have none
    waiting_since: float  # when it began to wait for this, in monotonic seconds


class WaitingNodes:
    """By name; a wait goes on while it is for the same."""

    def __init__(self) -> None:
        self.by_name: dict[str, WaitingNode] = {}
        self._reported: set[tuple[str, str]] = set()  # name and reason

    def add(self, node: WaitingNode) -> None:
        """It could not be served."""
        before = self.by_name.get(node.name)
        if before is not None and (before.uid, before.reason) == (node.uid, node.reason):
            node = msgspec.structs.replace(node, waiting_since=before.waiting_since)
        elif before is not None:
            self._reported.discard((before.name, before.reason))
        self.by_name[node.name] = node

    def remove(self, name: str) -> WaitingNode | None:
        """It is served, has blocks of somebody else, or is gone; how it waited, if it did."""
        node = self.by_name.pop(name, None)
        if node is not None:
            self._reported.discard((name, node.reason))
        return node

    def group_by_full_pools(self) -> dict[tuple[Pool, ...], list[str]]:
        """Names by the pools that have no block for them."""
        found: dict[tuple[Pool, ...], list[str]] = {}
        for node in self.by_name.values():
            if node.full_pools:
                found.setdefault(node.full_pools, []).append(node.name)
        return found

    def take_unreported(self, at: float) -> Iterator[WaitingNode]:
        """Those whose wait has become a long one, each once until its reason changes."""
        for node in list(self.by_name.values()):
            key = (node.name, node.reason)
            if node.outcome == NOT_MANAGED:
                continue
            if at - node.waiting_since >= LONG_WAIT_SECONDS and key not in self._reported:
                self._reported.add(key)
                yield node

    def clear(self) -> None:
        """Everything known is void."""
        self.by_name.clear()
        self._reported.clear()
