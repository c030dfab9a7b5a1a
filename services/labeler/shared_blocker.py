"""Finds the reason that most uninitialized Nodes share, so that it is reported once and not per Node."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

MAX_SEPARATE_REPORTS: Final = 10  # up to this number, each Node gets its own Event


class SharedBlocker(msgspec.Struct, frozen=True, kw_only=True):
    """The reason that more than half of the uninitialized Nodes have in common."""

    reason: str
    blocked_count: int
    waiting_count: int
    first_node: str  # first by name, so that all replicas choose the same Node

    def __str__(self) -> str:
        return (
            f"{self.reason}: {self.blocked_count} of {self.waiting_count} Nodes that wait to be initialised"
        )


def find_shared_blocker(reasons: Mapping[str, str], waiting_count: int) -> SharedBlocker | None:
    """Return the reason that more than ten and more than half of the waiting Nodes share, or None.

    `reasons`: the reason of each blocked Node, by name. `waiting_count`: all managed Nodes that wait.
    """
    if len(reasons) <= MAX_SEPARATE_REPORTS:
        return None
    [(reason, count)] = Counter(reasons.values()).most_common(1)
    if count <= MAX_SEPARATE_REPORTS or count * 2 <= waiting_count:
        return None
    first = min(name for name, each in reasons.items() if each == reason)
    return SharedBlocker(reason=reason, blocked_count=count, waiting_count=waiting_count, first_node=first)
