"""Runs one reconciler per object, each as a task of its own until the object is forgotten."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol, TypeVar

from libs.common.bus.delivery import backoff_seconds

log = logging.getLogger(__name__)


class Reconciler(Protocol):
    """Owns the state of one object and takes its steps one by one."""

    async def run(self) -> None:
        """Run until the object needs no more messages."""

    def on_forgotten(self) -> None:
        """Release what others know about the object: it left the pool."""


ReconcilerT = TypeVar("ReconcilerT", bound=Reconciler)


class ReconcilerPool(Mapping[str, ReconcilerT]):
    """The reconcilers of one kind, by object name. A defect in one does not affect the others."""

    def __init__(self, kind: str, jitter: random.Random) -> None:
        """`kind` is the log field with the object name."""
        self._kind = kind
        self._jitter = jitter
        self._reconcilers: dict[str, ReconcilerT] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __getitem__(self, name: str) -> ReconcilerT:
        return self._reconcilers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reconcilers)

    def __len__(self) -> int:
        return len(self._reconcilers)

    def start(self, name: str, reconciler: ReconcilerT) -> None:
        """Run this reconciler until it ends; the pool then forgets it."""
        self._reconcilers[name] = reconciler
        self._tasks[name] = asyncio.create_task(self._run(name, reconciler), name=f"{self._kind} {name}")

    def keep_only(self, names: AbstractSet[str]) -> None:
        """End and forget the reconcilers of all other objects."""
        for name in self._reconcilers.keys() - names:
            self._tasks[name].cancel()
            self._forget(name)

    async def close(self) -> None:
        """Cancel all tasks. The next start repeats the polls and publishes that this interrupts."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, name: str, reconciler: ReconcilerT) -> None:
        await supervise(reconciler.run, self._jitter, **{self._kind: name})
        self._forget(name)

    def _forget(self, name: str) -> None:
        del self._tasks[name]
        self._reconcilers.pop(name).on_forgotten()


async def supervise(run: Callable[[], Awaitable[None]], jitter: random.Random, **fields: str) -> None:
    """Run until `run` returns; restart it with back-off if it raises. `fields` name the object in logs."""
    failures = 0
    while True:
        try:
            return await run()
        except Exception:
            log.exception("reconciler failed, will restart", extra=fields)
            failures += 1
        await asyncio.sleep(backoff_seconds(failures, jitter.random()))
