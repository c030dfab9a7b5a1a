"""Ends the cooldown of each published name, later while many names cool down or more changes follow."""

import asyncio
from collections.abc import Callable
from typing import Generic

from services.watcher.core.kinds import Kind, ObjectT
from services.watcher.core.store import Store
from services.watcher.core.work_queue import SETTLING_SECONDS, WorkQueue, compute_cooldown


class CooldownTimer(Generic[ObjectT]):
    """Times the cooldowns of one work queue.

    The kubelet and several controllers change a joining Node about six times. Its first state and its
    deletion are published at once. No service needs the states between, and each message costs each service
    about 0.5 ms of CPU time.
    """

    def __init__(
        self, kind: Kind[ObjectT], store: Store[ObjectT], queue: WorkQueue, *, on_end: Callable[[], None]
    ) -> None:
        """`on_end` is called after the end of a cooldown, which may have queued the name."""
        self._kind = kind
        self._store = store
        self._queue = queue
        self._on_end = on_end
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._settling: set[str] = set()  # their cooldown is over, but further changes are about to follow

    def start(self, name: str) -> None:
        """Start the cooldown of a name that was published now."""
        self._schedule(name, self._cooldown(), self._check, asyncio.get_running_loop().time())

    def end(self, name: str) -> None:
        """End the cooldown now: a change is urgent."""
        self._forget(name)
        self._queue.end_cooldown(name)

    def on_change(self, name: str) -> None:
        """End the wait for further changes when none is about to follow any more."""
        if name in self._settling and not self._is_settling(name):
            self.end(name)

    def is_settling(self, name: str) -> bool:
        """Return whether the cooldown of that name is over, while the object is about to change again."""
        return name in self._settling

    def _check(self, name: str, published_at: float) -> None:
        """End the cooldown, unless it has become longer, as in a burst, or the object is about to change."""
        left = published_at + self._cooldown() - asyncio.get_running_loop().time()
        if left > 0:
            self._schedule(name, left, self._check, published_at)
        elif self._queue.has_changed_in_cooldown(name) and self._is_settling(name):
            # The labeler is about to initialize the Node, or the signer to issue the certificate. One message
            # reports both changes.
            self._settling.add(name)
            self._schedule(name, SETTLING_SECONDS, self._expire)
        else:
            self._expire(name)

    def _expire(self, name: str) -> None:
        self.end(name)
        self._on_end()

    def _schedule(self, name: str, seconds: float, call: Callable[..., None], *args: float) -> None:
        if (before := self._timers.pop(name, None)) is not None:
            before.cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, call, name, *args)

    def _forget(self, name: str) -> None:
        self._settling.discard(name)
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _cooldown(self) -> float:
        return compute_cooldown(self._queue.cooling_count, at_most=self._kind.max_cooldown_seconds)

    def _is_settling(self, name: str) -> bool:
        found = self._store.get(name)
        return found is not None and self._kind.is_settling(found)
