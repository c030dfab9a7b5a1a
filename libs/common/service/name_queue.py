"""The names of objects that wait for a reconciliation."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable


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

    def discard(self, name: str) -> None:
        """Remove the name if it waits."""
        self._names.pop(name, None)

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
