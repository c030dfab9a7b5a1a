"""When many Nodes wait for one and the same thing, it is not the Nodes' trouble: it is said once."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

MAX_SEPARATE_REPORTS: Final = 10  # up to that many Nodes may each have their own Event


class SharedBlocker(msgspec.Struct, frozen=True, kw_only=True):
    """What most of the waiting Nodes have in common."""

    reason: str
    blocked_count: int
    waiting_count: int
    first_node: str  # by name, so that every replica speaks of the same one

    def __str__(self) -> str:
        return (
            f"{self.reason}: {self.blocked_count} of {self.waiting_count} Nodes that wait to be initialised"
        )


def find_shared_blocker(reasons: Mapping[str, str], waiting_count: int) -> SharedBlocker | None:
    """The reason that more than ten, and more than half of the waiting Nodes share; None if there is none.

    `reasons`: why each blocked Node is blocked, by name; `waiting`: how many Nodes of ours wait in all.
    """
    if len(reasons) <= MAX_SEPARATE_REPORTS:
        return None
    [(reason, nodes)] = Counter(reasons.values()).most_common(1)
    if nodes <= MAX_SEPARATE_REPORTS or nodes * 2 <= waiting_count:
        return None
    first = min(name for name, its in reasons.items() if its == reason)
    return SharedBlocker(reason=reason, blocked_count=nodes, waiting_count=waiting_count, first_node=first)
