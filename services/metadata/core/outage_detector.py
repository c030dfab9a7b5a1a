"""Detects that most machines are unreachable, and selects the machines to poll to detect the recovery.

Each Node backs off by itself, up to a minute. While at least half of them fail for a reason that may be
common, single machines are polled in quick succession. When one answers, all others are polled again.
"""

import math
from typing import Final

from libs.common.contract.machine import FAULT_KINDS, MachineFault

_MIN_RECOVERY_GAP_SECONDS: Final = 5.0  # between recoveries: some Nodes may fail for individual reasons


class OutageDetector:
    """Tracks which Nodes are reachable, by the last poll of each."""

    def __init__(self) -> None:
        self._unreachable: dict[str, MachineFault] = {}  # in the order of their last polls
        self._reachable: set[str] = set()
        self._recovered_at = -math.inf  # monotonic time of the last recovery

    @property
    def is_active(self) -> bool:
        """Whether the machines of at least half of the Nodes are unreachable."""
        return bool(self._unreachable) and len(self._unreachable) >= len(self._reachable)

    def record_poll(
        self, name: str, fault: MachineFault | None, *, began: float, now: float
    ) -> tuple[str, ...]:
        """Record a poll and return the Nodes to poll soon: all unreachable ones, if this one recovered."""
        was_blocked = self._unreachable.pop(name, None) is not None
        if fault is not None and FAULT_KINDS[fault.kind].is_unreachable:
            self._reachable.discard(name)
            self._unreachable[name] = fault
            return (name,) if began < self._recovered_at <= now else ()  # it began before the recovery
        self._reachable.add(name)
        if not was_blocked or now - self._recovered_at < _MIN_RECOVERY_GAP_SECONDS:
            return ()
        self._recovered_at = now
        return tuple(self._unreachable)

    def select_probe(self) -> str:
        """Return the Node to poll now: the one with the oldest poll; "" while there is no outage."""
        return next(iter(self._unreachable)) if self.is_active else ""

    def forget(self, name: str) -> None:
        """Forget a Node that is gone."""
        self._unreachable.pop(name, None)
        self._reachable.discard(name)
