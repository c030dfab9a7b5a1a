"""When many Nodes wait for one and the same thing, it is not the Nodes' trouble: it is said once."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

MANY: Final = 10  # up to that many Nodes may each have their own Event


class SharedTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """What most of the waiting Nodes have in common."""

    reason: str
    nodes: int
    waiting: int
    first: str  # by name, so that every replica speaks of the same one

    def __str__(self) -> str:
        return f"{self.reason}: {self.nodes} of {self.waiting} Nodes that wait to be initialised"


def shared_trouble(reasons: Mapping[str, str], waiting: int) -> SharedTrouble | None:
    """The reason that more than ten, and more than half of the waiting Nodes share; None if there is none.

    `reasons`: why each blocked Node is blocked, by name; `waiting`: how many Nodes of ours wait in all.
    """
    if len(reasons) <= MANY:
        return None
    [(reason, nodes)] = Counter(reasons.values()).most_common(1)
    if nodes <= MANY or nodes * 2 <= waiting:
        return None
    first = min(name for name, its in reasons.items() if its == reason)
    return SharedTrouble(reason=reason, nodes=nodes, waiting=waiting, first=first)
