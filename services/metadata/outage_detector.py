"""Whether Talos as a whole is out of reach: its return is to be noticed within seconds, not after a back-off.

Each Node backs off by itself, to a minute. While most of them fail for a reason that may well be common, one
at a time is tried in quick succession; when it succeeds, all others are looked at again.
"""

import math
from typing import Final

from libs.common.contract.machine import FaultKind, MachineFault

_OUTAGE_KINDS: Final[frozenset[FaultKind]] = frozenset({"no_endpoint", "certificate", "refused", "timeout"})
_MIN_RECOVERY_GAP_SECONDS: Final = (
    5.0  # between two awakenings of everybody: some may fail for reasons of their own
)


class OutageDetector:
    """Who is reachable and who is not, as of each Node's last look."""

    def __init__(self) -> None:
        self._unreachable: dict[str, MachineFault] = {}  # in the order in which they were tried
        self._reachable: set[str] = set()
        self._recovered_at = -math.inf  # when everybody was last awakened, monotonic

    @property
    def is_active(self) -> bool:
        """Whether at least half of the Nodes cannot be looked at."""
        return bool(self._unreachable) and len(self._unreachable) >= len(self._reachable)

    def record_poll(
        self, name: str, fault: MachineFault | None, *, began: float, now: float
    ) -> tuple[str, ...]:
        """A look has ended. Returns whom to look at again soon: all blocked, when this one no longer is."""
        was_blocked = self._unreachable.pop(name, None) is not None
        if fault is not None and fault.kind in _OUTAGE_KINDS:
            self._reachable.discard(name)
            self._unreachable[name] = fault
            return (name,) if began < self._recovered_at <= now else ()  # it hung in what has ended since
        self._reachable.add(name)
        if not was_blocked or now - self._recovered_at < _MIN_RECOVERY_GAP_SECONDS:
            return ()
        self._recovered_at = now
        return tuple(self._unreachable)

    def select_probe(self) -> str:
        """Whom to try now: the one not tried for longest; "" while there is no outage."""
        return next(iter(self._unreachable)) if self.is_active else ""

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._unreachable.pop(name, None)
        self._reachable.discard(name)
