"""Compares the store with what the stream holds of one name; asks the API server where neither is proof."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Generic

from services.watcher.kinds import Kind, ObjectT
from services.watcher.publish_decision import (
    ConfirmAbsence,
    FencingToken,
    PublishDecision,
    decide_absent,
    decide_present,
)
from services.watcher.published_state import PublishedState
from services.watcher.store import Store


class PublishDecider(Generic[ObjectT]):
    """Decides what to publish of one name."""

    def __init__(
        self,
        kind: Kind[ObjectT],
        store: Store[ObjectT],
        published: PublishedState,
        *,
        now: Callable[[], datetime],
        absent_as_of: Callable[[str], Awaitable[int | None]],
    ) -> None:
        """`absent_as_of` asks the API server: the resourceVersion as of which no object has that name, None
        if one has. It raises TemporaryError without an answer.
        """
        self._kind = kind
        self._store = store
        self._published = published
        self._now = now
        self._absent_as_of = absent_as_of

    async def decide(self, name: str, token: FencingToken, *, force: bool) -> PublishDecision | None:
        """None if nothing can be published: the object exists, and its state is not known."""
        observation = self._decide(name, token, force=force)
        if not isinstance(observation, ConfirmAbsence):
            return observation
        held = self._published.get(self._kind, name)
        version = await self._absent_as_of(name)
        if version is None or self._published.get(self._kind, name) is not held:
            return None  # it exists, or something newer than the answer was published: a later look decides
        return self._decide(name, token, force=force, absent_as_of=version)

    def _decide(
        self, name: str, token: FencingToken, *, force: bool, absent_as_of: int | None = None
    ) -> PublishDecision | None:
        kind, found, held = self._kind, self._store.get(name), self._published.get(self._kind, name)
        void = self._published.is_fenced(kind, name)
        if found is not None:
            return decide_present(kind, found, held, token, now=self._now(), force=force, is_fenced=void)
        if self._store.is_unreadable(name) or not self._store.has_synced:
            return None
        return decide_absent(
            kind,
            held,
            token,
            last_resource_version=max(self._store.last_resource_version, absent_as_of or 0),
            now=self._now(),
            is_confirmed=absent_as_of is not None,
            is_fenced=void,
        )
