"""Names that wait for a reconciliation, and objects that wait for a change, with what can end the wait."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

MAX_WAITING: Final = 20_000  # beyond it the oldest waits for its next delivery
LONG_WAIT_SECONDS: Final = 30.0  # a longer wait for one reason is recorded on the Node


class NameQueue:
    """Each name at most once, in order of its first arrival."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._names)

    def add(self, names: Iterable[str]) -> None:
        """Add these names, and wake the workers."""
        self._names.update(dict.fromkeys(names))
        if self._names:
            self._wakeup.set()

    def clear(self) -> None:
        """Remove all names."""
        self._names.clear()

    async def work(self, reconcile: Callable[[str], Awaitable[None]], *, delay_seconds: float = 0.0) -> None:
        """Pass each name to `reconcile`, one at a time, until cancelled. Several workers share the queue.

        A worker that wakes up waits for `delay_seconds`, so that changes at the same time count as one.
        """
        while True:
            await self._wakeup.wait()
            if delay_seconds:
                await asyncio.sleep(delay_seconds)
            while self._names:
                name = next(iter(self._names))
                del self._names[name]
                await reconcile(name)
            self._wakeup.clear()


class WaitingObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a service could not finish yet."""

    name: str
    uid: str
    reason: str
    retry_at: float = math.inf  # when the object is processed again without a change, in monotonic seconds

    @property
    def node(self) -> str:
        """The Node that waits."""
        return self.name

    @property
    def causes(self) -> Collection[Hashable]:
        """A change of any of them may end the wait."""
        return ()

    @property
    def episode(self) -> Hashable:
        """The wait of a Node continues while this is the same."""
        return self.uid, self.reason

    @property
    def is_reported(self) -> bool:
        """Whether a long wait is recorded on the Node."""
        return True


WaitT = TypeVar("WaitT", bound=WaitingObject)


class _Episode(msgspec.Struct):
    key: Hashable
    since: float
    is_reported: bool = False


class WaitingObjects(Generic[WaitT]):
    """Stores waiting objects by name, the most recent last, and the wait of each Node."""

    def __init__(self) -> None:
        self.by_name: dict[str, WaitT] = {}
        self.by_cause: dict[Hashable, dict[str, None]] = {}  # cause -> names, the most recent last
        self._episodes: dict[str, _Episode] = {}  # by Node

    def add(self, wait: WaitT, at: float) -> None:
        """Add an object that could not be finished, at that monotonic time."""
        self.remove(wait.name)
        if len(self.by_name) >= MAX_WAITING:
            self.remove(next(iter(self.by_name)))
        self.by_name[wait.name] = wait
        for cause in wait.causes:
            self.by_cause.setdefault(cause, {})[wait.name] = None
        episode = self._episodes.get(wait.node)
        if episode is None or episode.key != wait.episode:
            self._episodes[wait.node] = _Episode(wait.episode, at)
            if len(self._episodes) > MAX_WAITING:
                del self._episodes[next(iter(self._episodes))]

    def remove(self, name: str) -> WaitT | None:
        """Remove and return an object; the wait of its Node may continue with another one."""
        wait = self.by_name.pop(name, None)
        for cause in wait.causes if wait else ():
            names = self.by_cause[cause]
            names.pop(name, None)
            if not names:
                del self.by_cause[cause]
        return wait

    def finish(self, name: str, node: str) -> WaitT | None:
        """Remove and return an object, and end the wait of its Node."""
        self.end_wait_of(node)
        return self.remove(name)

    def end_wait_of(self, node: str) -> None:
        """End the wait of a Node: a new Node of that name has not waited yet."""
        self._episodes.pop(node, None)

    def waiting_seconds(self, node: str, at: float) -> float:
        """Return for how long that Node has waited for its present reason; 0 if it does not wait."""
        episode = self._episodes.get(node)
        return at - episode.since if episode is not None else 0.0

    def find_by_cause(self, cause: Hashable) -> list[str]:
        """Return the names whose wait a change of `cause` may end."""
        return list(self.by_cause.get(cause, ()))

    def find_due(self, at: float) -> list[WaitT]:
        """Return the objects whose retry time has passed."""
        return [wait for wait in self.by_name.values() if wait.retry_at <= at]

    def take_unreported(self, at: float) -> Iterator[WaitT]:
        """Yield the objects with a long wait, each Node once until its reason changes."""
        for wait in self.by_name.values():
            episode = self._episodes.get(wait.node)
            if episode is None or episode.is_reported or episode.key != wait.episode or not wait.is_reported:
                continue
            if at - episode.since >= LONG_WAIT_SECONDS:
                episode.is_reported = True
                yield wait

    def clear(self) -> None:
        """Drop everything."""
        self.by_name.clear()
        self.by_cause.clear()
        self._episodes.clear()
