"""Whether Talos as a whole is out of reach: its return is to be noticed within seconds, not after a back-off.

Each Node backs off by itself, to a minute. While most of them fail for a reason that may well be common, one
at a time is tried in quick succession; when it succeeds, all others are looked at again.
"""

import math
from typing import Final

from libs.common.machine import FaultKind, MachineFault

_COMMON: Final[frozenset[FaultKind]] = frozenset({"no_endpoint", "certificate", "refused", "timeout"})
_APART_SECONDS: Final = 5.0  # between two awakenings of everybody: some may fail for reasons of their own


class Outage:
    """Who is reachable and who is not, as of each Node's last look."""

    def __init__(self) -> None:
        self._blocked: dict[str, MachineFault] = {}  # in the order in which they were tried
        self._reached: set[str] = set()
        self._awakened = -math.inf  # when everybody was last awakened, monotonic

    @property
    def is_on(self) -> bool:
        """Whether at least half of the Nodes cannot be looked at."""
        return bool(self._blocked) and len(self._blocked) >= len(self._reached)

    def looked(self, name: str, fault: MachineFault | None, *, began: float, now: float) -> tuple[str, ...]:
        """A look has ended. Returns whom to look at again soon: all blocked, when this one no longer is."""
        was_blocked = self._blocked.pop(name, None) is not None
        if fault is not None and fault.kind in _COMMON:
            self._reached.discard(name)
            self._blocked[name] = fault
            return (name,) if began < self._awakened <= now else ()  # it hung in what has ended since
        self._reached.add(name)
        if not was_blocked or now - self._awakened < _APART_SECONDS:
            return ()
        self._awakened = now
        return tuple(self._blocked)

    def probe(self) -> str:
        """Whom to try now: the one not tried for longest; "" while there is no outage."""
        return next(iter(self._blocked)) if self.is_on else ""

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._blocked.pop(name, None)
        self._reached.discard(name)
