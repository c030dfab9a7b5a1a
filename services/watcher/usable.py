"""How many Nodes are usable, by what was listed and watched."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from libs.common.node import Node


class Usability(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes without and with the uninitialized taint, and since when the oldest of these exists."""

    usable: int
    uninitialized: int
    oldest: datetime | None = None

    def age_seconds(self, now: datetime) -> float:
        """Of the oldest Node that is not initialized; 0 = there is none."""
        return max(0.0, (now - self.oldest).total_seconds()) if self.oldest is not None else 0.0


def usability(nodes: Iterable[Node]) -> Usability:
    """Counts them."""
    count, waiting = 0, []
    for node in nodes:
        count += 1
        if not node.initialized:
            waiting.append(node.metadata.creation_timestamp)
    oldest = min((each for each in waiting if each is not None), default=None)
    return Usability(usable=count - len(waiting), uninitialized=len(waiting), oldest=oldest)
