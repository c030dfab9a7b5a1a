"""The names to publish: at most one item per name in process, then a cooldown."""

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass
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


class _Delay(msgspec.Struct):
    """A name that is queued at `due`, or by an earlier `add`."""

    due: float
    force: bool


class _Cooldown(msgspec.Struct):
    """A published name; changes of it are queued at `due`."""

    due: float
    published_at: float
    has_changed: bool
    is_settling: bool = False  # the cooldown is over, but further changes are about to follow


def compute_cooldown(cooling_count: int, *, at_most: float) -> float:
    """Return the cooldown after a publish, longer the more names are cooling down."""
    return min(at_most, COOLDOWN_SECONDS + _COOLDOWN_PER_NAME_SECONDS * cooling_count)


@dataclass(eq=False, kw_only=True)
class WorkQueue:
    """A queue of names, not of versions: processing an item uses the current state of the object.

    A name is in process at most once, and cools down after a publish. A change meanwhile adds exactly one
    more item. So the messages of one subject are published in order. Rapid changes are combined into one
    message: the kubelet and several controllers change a joining Node about six times. No service needs the
    states between, and each message costs each service about 0.5 ms of CPU time.

    Times are monotonic, in seconds. The caller calls `end_delays` at `next_due`.
    """

    in_flight: int  # the limit of items in process
    max_cooldown_seconds: float
    # whether more changes of that object are about to follow
    is_settling: Callable[[str], bool] = lambda name: False

    def __post_init__(self) -> None:
        self._queued: dict[str, bool] = {}  # in order of arrival
        self._processing: dict[str, bool] = {}
        self._dirty: dict[str, bool] = {}  # added while in process
        self._delayed: dict[str, _Delay] = {}  # failed, or added with a delay
        self._cooling: dict[str, _Cooldown] = {}
        self._due: list[tuple[float, str]] = []  # heap; an entry whose time is not the name's `due` is void
        self._failures: dict[str, int] = {}
        self._outstanding: set[str] = set()

    @property
    def is_round_complete(self) -> bool:
        """Whether every name of the last round has been processed."""
        return not self._outstanding

    @property
    def pending_count(self) -> int:
        """Number of names that wait, including delayed ones and changed ones in cooldown."""
        changed = sum(cooldown.has_changed for cooldown in self._cooling.values())
        return len(self._queued) + len(self._dirty) + len(self._delayed) + changed

    @property
    def failing_count(self) -> int:
        """Number of names whose last attempt failed."""
        return len(self._failures)

    def failure_count(self, name: str) -> int:
        """Return how many attempts in a row failed for that name."""
        return self._failures.get(name, 0)

    def start_round(self, names: Collection[str]) -> None:
        """Add all of these names even if unchanged, and forget earlier failures, which may be over."""
        self._outstanding = set(names)
        self._failures.clear()
        for name in names:
            self.add(name, force=True)
        for name in list(self._delayed):
            self.add(name)

    def add(self, name: str, *, force: bool = False, is_urgent: bool = False) -> None:
        """Add a changed name; `force` publishes it even if unchanged. Both flags end its cooldown."""
        if (cooldown := self._cooling.get(name)) is not None:
            cooldown.has_changed = True
            if not (force or is_urgent) and not (cooldown.is_settling and not self.is_settling(name)):
                return
            del self._cooling[name]
        if (delay := self._delayed.pop(name, None)) is not None:
            force = force or delay.force
        queue = self._dirty if name in self._processing else self._queued
        queue[name] = force or queue.get(name, False)

    def add_change(self, name: str, now: float) -> None:
        """Add a changed name at `now`. If more changes are about to follow, it waits for them like after a
        publish: the labeler sets addresses before it removes the taint, the signer answers an approval.
        """
        is_waiting = name in self._queued or name in self._processing or name in self._cooling
        if is_waiting or not self.is_settling(name):
            self.add(name)
        else:
            self.add_delayed(name, now + self._compute_cooldown())

    def add_delayed(self, name: str, due: float) -> None:
        """Add a name at that time, unless another `add` comes first."""
        if name not in self._delayed:
            self._delay(name, due, force=False)

    def get(self) -> WorkItem | None:
        """Return the next item; None if none waits or the limit of items in process is reached."""
        if not self._queued or len(self._processing) >= self.in_flight:
            return None
        name = next(iter(self._queued))
        force = self._queued.pop(name)
        self._processing[name] = force
        return WorkItem(name, force)

    def done(self, name: str, *, published_at: float | None = None) -> None:
        """Finish an item. After a publish, further changes wait for the end of the cooldown."""
        del self._processing[name]
        self._failures.pop(name, None)
        again = self._dirty.pop(name, None)
        if published_at is not None and not again:
            self._cooling[name] = cooldown = _Cooldown(0.0, published_at, has_changed=again is False)
            self._schedule(name, cooldown, published_at + self._compute_cooldown())
        elif again is not None:
            self._queued[name] = again
        if not again:  # otherwise it was added with force during processing, perhaps by the round
            self._outstanding.discard(name)

    def count_failure(self, name: str) -> int:
        """Count a failure of an item in process; return the number of failures in a row, from 1."""
        self._failures[name] = self._failures.get(name, 0) + 1
        return self._failures[name]

    def retry_at(self, name: str, due: float) -> None:
        """Requeue a failed item at that time, or when the object changes."""
        self._delay(name, due, force=self._processing.pop(name) | self._dirty.pop(name, False))

    @property
    def next_due(self) -> float | None:
        """The time at which a delay or a cooldown may end; None without one."""
        return self._due[0][0] if self._due else None

    def end_delays(self, now: float) -> None:
        """Queue the delayed names, and the changed ones in cooldown, whose time has come."""
        while self._due and self._due[0][0] <= now:
            due, name = heapq.heappop(self._due)
            delay, cooldown = self._delayed.get(name), self._cooling.get(name)
            if delay is not None and delay.due == due:
                self.add(name)
            if cooldown is not None and cooldown.due == due:
                self._end_cooldown(name, cooldown, now)

    def _end_cooldown(self, name: str, cooldown: _Cooldown, now: float) -> None:
        """End the cooldown, unless it has become longer, as in a burst, or the object is about to change."""
        end = cooldown.published_at + self._compute_cooldown()
        if end > now and not cooldown.is_settling:
            self._schedule(name, cooldown, end)
        elif cooldown.has_changed and not cooldown.is_settling and self.is_settling(name):
            # The labeler is about to initialize the Node, or the signer to issue the certificate. One message
            # reports both changes.
            cooldown.is_settling = True
            self._schedule(name, cooldown, now + SETTLING_SECONDS)
        else:
            del self._cooling[name]
            if cooldown.has_changed:
                self.add(name)

    def _compute_cooldown(self) -> float:
        return compute_cooldown(len(self._cooling), at_most=self.max_cooldown_seconds)

    def _delay(self, name: str, due: float, *, force: bool) -> None:
        self._delayed[name] = delay = _Delay(due, force)
        self._schedule(name, delay, due)

    def _schedule(self, name: str, wait: _Delay | _Cooldown, due: float) -> None:
        wait.due = due
        heapq.heappush(self._due, (due, name))
