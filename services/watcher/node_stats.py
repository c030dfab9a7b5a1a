"""Counts initialized and uninitialized Nodes in the informer's store."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from libs.common.contract.node import Node


class NodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """Number of initialized and uninitialized Nodes, and creation time of the oldest uninitialized one."""

    usable: int
    uninitialized: int
    oldest_uninitialized: datetime | None = None

    def oldest_age_seconds(self, now: datetime) -> float:
        """Return the age of the oldest uninitialized Node in seconds; 0 if there is none."""
        return (
            max(0.0, (now - self.oldest_uninitialized).total_seconds())
            if self.oldest_uninitialized is not None
            else 0.0
        )


def count_nodes(nodes: Iterable[Node]) -> NodeStats:
    """Count initialized and uninitialized Nodes."""
    count, waiting = 0, []
    for node in nodes:
        count += 1
        if not node.is_initialized:
            waiting.append(node.metadata.creation_timestamp)
    oldest = min((each for each in waiting if each is not None), default=None)
    return NodeStats(usable=count - len(waiting), uninitialized=len(waiting), oldest_uninitialized=oldest)
