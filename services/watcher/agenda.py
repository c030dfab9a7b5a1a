"""Which nodes are still to be looked at and said: one flight per name, then a rest; the latest wish wins."""

from collections.abc import Collection
from typing import Final

import msgspec

REST_SECONDS: Final = 1.0
_REST_PER_NAME_SECONDS: Final = 0.008  # a thousand joins take all of us several seconds


class Errand(msgspec.Struct, frozen=True):
    """One look at one name; `anyway` = to be said although nothing changed."""

    name: str
    anyway: bool


def rest_seconds(resting: int, *, at_most: float) -> float:
    """How long a name rests after it was said, with so many others at rest: the more to say, the rarer."""
    return min(at_most, REST_SECONDS + _REST_PER_NAME_SECONDS * resting)


class Agenda:
    """A queue of names, never of versions: whoever takes a name looks at how the node is by then.

    A name is in flight at most once, and rests after it was said; wished for meanwhile it gets exactly one
    more turn afterwards. So the messages of one subject leave in order, and what changes a node again and
    again (as it joins, four writers do within a second) is said once.
    """

    def __init__(self, *, in_flight: int) -> None:
        self._limit = in_flight
        self._wanted: dict[str, bool] = {}  # in the order of arrival
        self._flying: dict[str, bool] = {}
        self._again: dict[str, bool] = {}  # wished for while in flight
        self._parked: dict[str, bool] = {}  # failed; their turn comes with `retry`, or with news
        self._resting: dict[str, bool] = {}  # just said; whether there is news of them since
        self._failures: dict[str, int] = {}
        self._outstanding: set[str] = set()

    @property
    def round_complete(self) -> bool:
        """Whether every name of the round that began last has been dealt with."""
        return not self._outstanding

    @property
    def waiting(self) -> int:
        """How many names wait for their turn, those that failed or rest included."""
        return len(self._wanted) + len(self._again) + len(self._parked) + sum(self._resting.values())

    @property
    def failing(self) -> int:
        """How many names failed and have not been dealt with since."""
        return len(self._failures)

    def failures(self, name: str) -> int:
        """How often in a row the errand to that name failed."""
        return self._failures.get(name, 0)

    @property
    def resting(self) -> int:
        """How many names have just been said."""
        return len(self._resting)

    def begin_round(self, names: Collection[str]) -> None:
        """All of these are to be said anyway. Earlier failures are forgotten: the world is another one."""
        self._outstanding = set(names)
        self._failures.clear()
        for name in names:
            self.want(name, anyway=True)
        for name in list(self._parked):
            self.want(name)

    def want(self, name: str, *, anyway: bool = False) -> None:
        """There is news of this name, or it is to be said anyway, rest or no rest."""
        if name in self._resting:
            if not anyway:
                self._resting[name] = True
                return
            del self._resting[name]
        anyway = self._parked.pop(name, False) or anyway
        queue = self._again if name in self._flying else self._wanted
        queue[name] = anyway or queue.get(name, False)

    def take(self) -> Errand | None:
        """The next errand; None when nothing waits, or enough is in flight."""
        if not self._wanted or len(self._flying) >= self._limit:
            return None
        name = next(iter(self._wanted))
        anyway = self._wanted.pop(name)
        self._flying[name] = anyway
        return Errand(name, anyway)

    def done(self, name: str, *, rests: bool = False) -> None:
        """The errand is settled: said, needless or impossible. With `rests` news of it wait for `rested`."""
        del self._flying[name]
        self._failures.pop(name, None)
        again = self._again.pop(name, None)
        if rests and not again:
            self._resting[name] = again is False
        elif again is not None:
            self._wanted[name] = again
        if not again:  # else it was wanted anyway after this flight began: by the round, perhaps
            self._outstanding.discard(name)

    def rested(self, name: str) -> None:
        """The rest is over, or what has happened to the name cannot wait for its end."""
        if self._resting.pop(name, False):
            self.want(name)

    def failed(self, name: str) -> int:
        """The errand has to be run again; returns how often in a row it failed, from 1."""
        self._parked[name] = self._flying.pop(name) | self._again.pop(name, False)
        self._failures[name] = self._failures.get(name, 0) + 1
        return self._failures[name]

    def retry(self, name: str) -> None:
        """The wait after a failure is over."""
        if name in self._parked:
            self.want(name)
