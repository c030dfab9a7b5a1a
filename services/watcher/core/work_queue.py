"""The names to publish: at most one item per name in process, then a cooldown."""

from collections.abc import Collection
from typing import Final

import msgspec

COOLDOWN_SECONDS: Final = 1.0
# a burst of a thousand joins keeps all services busy for several seconds
_COOLDOWN_PER_NAME_SECONDS: Final = 0.008
# Changes that came during a cooldown wait so much longer at most, while more changes are about to follow.
SETTLING_SECONDS: Final = 1.0


class WorkItem(msgspec.Struct, frozen=True):
    """One item; `force`: publish the object even if unchanged."""

    name: str
    force: bool


def compute_cooldown(cooling_count: int, *, at_most: float) -> float:
    """Return the cooldown after a publish, longer the more names are cooling down."""
    return min(at_most, COOLDOWN_SECONDS + _COOLDOWN_PER_NAME_SECONDS * cooling_count)


class WorkQueue:
    """A queue of names, not of versions: processing an item uses the current state of the object.

    A name is in process at most once, and cools down after a publish. A change meanwhile adds exactly one
    more item. So the messages of one subject are published in order, and rapid changes are combined into one
    message (four writers change a joining Node within a second).
    """

    def __init__(self, *, in_flight: int) -> None:
        self._limit = in_flight
        self._queued: dict[str, bool] = {}  # in order of arrival
        self._processing: dict[str, bool] = {}
        self._dirty: dict[str, bool] = {}  # added while in process
        self._failed: dict[str, bool] = {}  # wait for `retry` or another `add`
        self._cooling: dict[str, bool] = {}  # after a publish; True: the object has changed since
        self._failures: dict[str, int] = {}
        self._outstanding: set[str] = set()

    @property
    def is_round_complete(self) -> bool:
        """Whether every name of the last round has been processed."""
        return not self._outstanding

    @property
    def pending_count(self) -> int:
        """Number of names that wait, including failed ones and changed ones in cooldown."""
        return len(self._queued) + len(self._dirty) + len(self._failed) + sum(self._cooling.values())

    @property
    def failing_count(self) -> int:
        """Number of names whose last attempt failed."""
        return len(self._failures)

    def failure_count(self, name: str) -> int:
        """Return how many attempts in a row failed for that name."""
        return self._failures.get(name, 0)

    @property
    def cooling_count(self) -> int:
        """Number of names in cooldown."""
        return len(self._cooling)

    def start_round(self, names: Collection[str]) -> None:
        """Add all of these names even if unchanged, and forget earlier failures, which may be over."""
        self._outstanding = set(names)
        self._failures.clear()
        for name in names:
            self.add(name, force=True)
        for name in list(self._failed):
            self.add(name)

    def add(self, name: str, *, force: bool = False) -> None:
        """Add a changed name; `force`: publish it even if unchanged, and end its cooldown."""
        if name in self._cooling:
            if not force:
                self._cooling[name] = True
                return
            del self._cooling[name]
        force = self._failed.pop(name, False) or force
        queue = self._dirty if name in self._processing else self._queued
        queue[name] = force or queue.get(name, False)

    def get(self) -> WorkItem | None:
        """Return the next item; None if none waits or the limit of items in process is reached."""
        if not self._queued or len(self._processing) >= self._limit:
            return None
        name = next(iter(self._queued))
        force = self._queued.pop(name)
        self._processing[name] = force
        return WorkItem(name, force)

    def done(self, name: str, *, cool_down: bool = False) -> None:
        """Finish an item. With `cool_down`, further changes wait for `end_cooldown`."""
        del self._processing[name]
        self._failures.pop(name, None)
        again = self._dirty.pop(name, None)
        if cool_down and not again:
            self._cooling[name] = again is False
        elif again is not None:
            self._queued[name] = again
        if not again:  # otherwise it was added with force during processing, perhaps by the round
            self._outstanding.discard(name)

    def has_changed_in_cooldown(self, name: str) -> bool:
        """Return whether the end of the cooldown of that name would add it."""
        return self._cooling.get(name, False)

    def end_cooldown(self, name: str) -> None:
        """End the cooldown of a name, when it is over or when a change is urgent."""
        if self._cooling.pop(name, False):
            self.add(name)

    def mark_failed(self, name: str) -> int:
        """Mark an item as failed; return the number of failures in a row, from 1."""
        self._failed[name] = self._processing.pop(name) | self._dirty.pop(name, False)
        self._failures[name] = self._failures.get(name, 0) + 1
        return self._failures[name]

    def retry(self, name: str) -> None:
        """Requeue a failed name after its backoff."""
        if name in self._failed:
            self.add(name)
