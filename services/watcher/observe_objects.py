"""Compares the store with what the stream holds of one name; asks the API server where neither is proof."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Generic

from services.watcher.held import HeldFlow
from services.watcher.kinds import Kind, Seen
from services.watcher.observe import Observation, Stamp, Unproven, observe, observe_absence
from services.watcher.store import Store


class ObjectObserver(Generic[Seen]):
    """Decides what to publish of one name."""

    def __init__(
        self,
        kind: Kind[Seen],
        store: Store[Seen],
        held: HeldFlow,
        *,
        now: Callable[[], datetime],
        absent_as_of: Callable[[str], Awaitable[int | None]],
    ) -> None:
        """`absent_as_of` asks the API server: the resourceVersion as of which no object has that name, None
        if one has. It raises TemporaryError without an answer.
        """
        self._kind = kind
        self._store = store
        self._held = held
        self._now = now
        self._absent_as_of = absent_as_of

    async def observe(self, name: str, stamp: Stamp, *, anyway: bool) -> Observation | None:
        """None if nothing can be published: the object exists, and its state is not known."""
        observation = self._observe(name, stamp, anyway=anyway)
        if not isinstance(observation, Unproven):
            return observation
        held = self._held.of(self._kind, name)
        version = await self._absent_as_of(name)
        if version is None or self._held.of(self._kind, name) is not held:
            return None  # it exists, or something newer than the answer was published: a later look decides
        return self._observe(name, stamp, anyway=anyway, absent_as_of=version)

    def _observe(
        self, name: str, stamp: Stamp, *, anyway: bool, absent_as_of: int | None = None
    ) -> Observation | None:
        kind, found, held = self._kind, self._store.get(name), self._held.of(self._kind, name)
        void = self._held.is_void(kind, name)
        if found is not None:
            return observe(kind, found, held, stamp, now=self._now(), anyway=anyway, void=void)
        if self._store.is_unreadable(name) or not self._store.listed:
            return None
        return observe_absence(
            kind,
            held,
            stamp,
            seen_version=max(self._store.seen_version, absent_as_of or 0),
            now=self._now(),
            confirmed=absent_as_of is not None,
            void=void,
        )
