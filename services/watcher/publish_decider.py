"""Decides for one name by store and published state; confirms an absence with the API server if needed."""

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
    """Decides what to publish for one name."""

    def __init__(
        self,
        kind: Kind[ObjectT],
        store: Store[ObjectT],
        published: PublishedState,
        *,
        now: Callable[[], datetime],
        absent_as_of: Callable[[str], Awaitable[int | None]],
    ) -> None:
        """`absent_as_of` returns the resourceVersion at which no object has that name, None if one has.

        It asks the API server, and raises TemporaryError without an answer.
        """
        self._kind = kind
        self._store = store
        self._published = published
        self._now = now
        self._absent_as_of = absent_as_of

    async def decide(self, name: str, token: FencingToken, *, force: bool) -> PublishDecision | None:
        """Return the decision; None if the state is unknown, so that nothing can be published now."""
        decision = self._decide(name, token, force=force)
        if not isinstance(decision, ConfirmAbsence):
            return decision
        published = self._published.get(self._kind, name)
        version = await self._absent_as_of(name)
        if version is None or self._published.get(self._kind, name) is not published:
            # The object exists, or a newer observation was published meanwhile: a later item decides.
            return None
        return self._decide(name, token, force=force, absent_as_of=version)

    def _decide(
        self, name: str, token: FencingToken, *, force: bool, absent_as_of: int | None = None
    ) -> PublishDecision | None:
        kind, found, published = self._kind, self._store.get(name), self._published.get(self._kind, name)
        is_fenced = self._published.is_fenced(kind, name)
        if found is not None:
            return decide_present(
                kind, found, published, token, now=self._now(), force=force, is_fenced=is_fenced
            )
        if self._store.is_unreadable(name) or not self._store.has_synced:
            return None
        return decide_absent(
            kind,
            published,
            token,
            last_resource_version=max(self._store.last_resource_version, absent_as_of or 0),
            now=self._now(),
            is_confirmed=absent_as_of is not None,
            is_fenced=is_fenced,
        )
