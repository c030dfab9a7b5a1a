"""How many Nodes are usable, by what was listed and watched."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from libs.common.contract.node import Node


class NodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes without and with the uninitialized taint, and since when the oldest of these exists."""

    usable: int
    uninitialized: int
    oldest_uninitialized: datetime | None = None

    def oldest_age_seconds(self, now: datetime) -> float:
        """Of the oldest Node that is not initialized; 0 = there is none."""
        return (
            max(0.0, (now - self.oldest_uninitialized).total_seconds())
            if self.oldest_uninitialized is not None
            else 0.0
        )


def count_nodes(nodes: Iterable[Node]) -> NodeStats:
    """Counts them."""
    count, waiting = 0, []
    for node in nodes:
        count += 1
        if not node.is_initialized:
            waiting.append(node.metadata.creation_timestamp)
    oldest = min((each for each in waiting if each is not None), default=None)
    return NodeStats(usable=count - len(waiting), uninitialized=len(waiting), oldest_uninitialized=oldest)
