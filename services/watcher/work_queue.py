"""Which nodes are still to be looked at and said: one flight per name, then a rest; the latest wish wins."""

from collections.abc import Collection
from typing import Final

import msgspec

COOLDOWN_SECONDS: Final = 1.0
_COOLDOWN_PER_NAME_SECONDS: Final = 0.008  # a thousand joins take all of us several seconds


class WorkItem(msgspec.Struct, frozen=True):
    """One look at one name; `anyway` = to be said although nothing changed."""

    name: str
    force: bool


def compute_cooldown(cooling_count: int, *, at_most: float) -> float:
    """How long a name rests after it was said, with so many others at rest: the more to say, the rarer."""
    return min(at_most, COOLDOWN_SECONDS + _COOLDOWN_PER_NAME_SECONDS * cooling_count)


class WorkQueue:
    """A queue of names, never of versions: whoever takes a name looks at how the node is by then.

    A name is in flight at most once, and rests after it was said; wished for meanwhile it gets exactly one
    more turn afterwards. So the messages of one subject leave in order, and what changes a node again and
    again (as it joins, four writers do within a second) is said once.
    """

    def __init__(self, *, in_flight: int) -> None:
        self._limit = in_flight
        self._queued: dict[str, bool] = {}  # in the order of arrival
        self._processing: dict[str, bool] = {}
        self._dirty: dict[str, bool] = {}  # wished for while in flight
        self._failed: dict[str, bool] = {}  # failed; their turn comes with `retry`, or with news
        self._cooling: dict[str, bool] = {}  # just said; whether there is news of them since
        self._failures: dict[str, int] = {}
        self._outstanding: set[str] = set()

    @property
    def is_round_complete(self) -> bool:
        """Whether every name of the round that began last has been dealt with."""
        return not self._outstanding

    @property
    def pending_count(self) -> int:
        """How many names wait for their turn, those that failed or rest included."""
        return len(self._queued) + len(self._dirty) + len(self._failed) + sum(self._cooling.values())

    @property
    def failing_count(self) -> int:
        """How many names failed and have not been dealt with since."""
        return len(self._failures)

    def failure_count(self, name: str) -> int:
        """How often in a row the errand to that name failed."""
        return self._failures.get(name, 0)

    @property
    def cooling_count(self) -> int:
        """How many names have just been said."""
        return len(self._cooling)

    def start_round(self, names: Collection[str]) -> None:
        """All of these are to be said anyway. Earlier failures are forgotten: the world is another one."""
        self._outstanding = set(names)
        self._failures.clear()
        for name in names:
            self.add(name, force=True)
        for name in list(self._failed):
            self.add(name)

    def add(self, name: str, *, force: bool = False) -> None:
        """There is news of this name, or it is to be said anyway, rest or no rest."""
        if name in self._cooling:
            if not force:
                self._cooling[name] = True
                return
            del self._cooling[name]
        force = self._failed.pop(name, False) or force
        queue = self._dirty if name in self._processing else self._queued
        queue[name] = force or queue.get(name, False)

    def get(self) -> WorkItem | None:
        """The next errand; None when nothing waits, or enough is in flight."""
        if not self._queued or len(self._processing) >= self._limit:
            return None
        name = next(iter(self._queued))
        anyway = self._queued.pop(name)
        self._processing[name] = anyway
        return WorkItem(name, anyway)

    def done(self, name: str, *, cool_down: bool = False) -> None:
        """The errand is settled: said, needless or impossible. With `rests` news of it wait for `rested`."""
        del self._processing[name]
        self._failures.pop(name, None)
        again = self._dirty.pop(name, None)
        if cool_down and not again:
            self._cooling[name] = again is False
        elif again is not None:
            self._queued[name] = again
        if not again:  # else it was wanted anyway after this flight began: by the round, perhaps
            self._outstanding.discard(name)

    def end_cooldown(self, name: str) -> None:
        """The rest is over, or what has happened to the name cannot wait for its end."""
        if self._cooling.pop(name, False):
            self.add(name)

    def mark_failed(self, name: str) -> int:
        """The errand has to be run again; returns how often in a row it failed, from 1."""
        self._failed[name] = self._processing.pop(name) | self._dirty.pop(name, False)
        self._failures[name] = self._failures.get(name, 0) + 1
        return self._failures[name]

    def retry(self, name: str) -> None:
        """The wait after a failure is over."""
        if name in self._failed:
            self.add(name)
