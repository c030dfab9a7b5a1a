"""Keeps a store up to date with the API server, and passes on the names of changed objects."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Generic, NoReturn, Protocol

from libs.common.bus.delivery import TemporaryError
from libs.common.contract.node import parse_resource_version
from libs.common.contract.services import WATCHER
from libs.common.contract.subjects import ROOT
from libs.common.kube.errors import Forbidden, KubeError
from libs.common.kube.objects import Item, UnreadableObject
from libs.common.kube.watch_events import Bookmark, Changed, Deleted, ListSnapshot, WatchEvent
from libs.common.observability import metrics
from services.watcher.core.kinds import Kind, ObjectT
from services.watcher.core.leader_epoch import LeaderEpoch
from services.watcher.core.published_state import PublishedState
from services.watcher.core.store import Store
from services.watcher.resync_requests import ResyncRequests

log = logging.getLogger(__name__)


class ObjectSource(Protocol[Item]):
    """Lists and watches one kind: `libs.common.kube.reflector.Reflector`, or a scripted fake in tests."""

    def problems(self) -> tuple[str, ...]:
        """Return why the received objects may be out of date, in words for /readyz."""

    def seconds_since_contact(self) -> float | None:
        """Return the seconds since the API server last responded; None before the first response."""

    async def absent_as_of_version(self, name: str) -> str | None:
        """Return the resourceVersion at which no object has that name; None if one has. Raises KubeError."""

    async def run(self, handle: Callable[[WatchEvent[Item]], Awaitable[None]]) -> NoReturn:
        """List, then watch; list again whenever changes may have been missed."""


ObjectSourceFactory = Callable[
    [Callable[[UnreadableObject], None], Callable[[Exception], None]], ObjectSource[Item]
]


class Informer(Generic[ObjectT]):
    """Lists and watches one kind during one leadership term."""

    def __init__(
        self,
        kind: Kind[ObjectT],
        source: ObjectSourceFactory[ObjectT],
        store: Store[ObjectT],
        *,
        published: PublishedState,
        epoch: LeaderEpoch,
        requests: ResyncRequests,
        now: Callable[[], datetime],
    ) -> None:
        self._kind = kind
        self._source = source(self._on_unreadable, self._on_error)
        self._store = store
        self._published = published
        self._epoch = epoch
        self._requests = requests
        self._now = now
        self._unreadable: dict[str, str] = {}
        self._last_error: Exception | None = None
        # One at a time: many slow lists would occupy the connections that Lease renewals need.
        self._confirm_slot = asyncio.Semaphore(1)

    @property
    def is_sync_pending(self) -> bool:
        """Whether the first list is still expected: it has neither arrived nor failed."""
        return not self._store.has_synced and self._last_error is None

    def problems(self) -> tuple[str, ...]:
        """Return why the store may be out of date, in words for /readyz."""
        problems = self._source.problems()
        if problems and isinstance(self._last_error, Forbidden):
            return (*problems, describe_missing_rule(self._kind.resource))
        return problems

    async def run(self, on_changed_names: Callable[[Collection[str]], None]) -> NoReturn:
        """List and watch until cancelled. Pass on the names of changed objects."""
        # Computed at each scrape: a quiet cluster sends no event for hours, and the store is still up to
        # date.
        metrics.WATCH_LAST_CONTACT.labels(self._kind.resource).set_function(self._last_contact)

        async def handle(event: WatchEvent[ObjectT]) -> None:
            changed_names = self._apply(event)
            if changed_names or isinstance(event, ListSnapshot):
                on_changed_names(changed_names)
                self._requests.wake()

        await self._source.run(handle)

    async def absent_as_of_version(self, name: str) -> int | None:
        """Return the resourceVersion at which no object has that name; None if one has.

        Lists that one name at the API server. Raises TemporaryError if the server does not answer.
        """
        try:
            async with self._confirm_slot:
                version = await self._source.absent_as_of_version(name)
        except KubeError as error:
            raise TemporaryError(
                f"cannot confirm that a {self._kind.log_field} is gone", str(error)
            ) from error
        return None if version is None else parse_resource_version(version)

    def _last_contact(self) -> float:
        age = self._source.seconds_since_contact()
        return 0.0 if age is None else self._now().timestamp() - age

    def _apply(self, event: WatchEvent[ObjectT]) -> Collection[str]:
        """Apply the event to the store and return the names of changed objects."""
        self._last_error = None
        match event:
            case ListSnapshot():
                return self._apply_list(event)
            case Changed(item=changed):
                return self._store.put(changed)
            case Deleted(item=deleted):
                self._store.remove(deleted.key, deleted.metadata.resource_version)
                return (deleted.key,)
            case Bookmark(resource_version=version):
                self._store.advance_version(version)
        return ()

    def _apply_list(self, listed: ListSnapshot[ObjectT]) -> Collection[str]:
        known = self._store.last_resource_version
        changed_names = self._store.replace(listed.items, listed.unreadable, listed.resource_version)
        self._unreadable = {n: why for n, why in self._unreadable.items() if n in listed.unreadable}
        # Soon after a restore from a recent backup, etcd has passed the known version. Objects have not.
        has_later = any(self._published.has_later(self._kind, each) for each in listed.items)
        if self._store.last_resource_version < known or has_later:
            log.warning("resourceVersions went back (restored etcd?), starting a new epoch")
            self._epoch.mark_rewound()
        fields = {
            "resource": self._kind.resource,
            "objects": len(listed.items),
            "changed": len(changed_names),
        }
        log.info("objects listed", extra=fields)
        return changed_names

    def _on_unreadable(self, unreadable: UnreadableObject) -> None:
        if self._unreadable.get(unreadable.name) != unreadable.reason:
            log.error(
                "object skipped: cannot be decoded",
                extra={self._kind.log_field: unreadable.name, "reason": unreadable.reason},
            )
        metrics.PUBLISHED.labels(self._kind.subject.removeprefix(f"{ROOT}."), "unreadable").inc()
        self._unreadable[unreadable.name] = unreadable.reason
        self._store.mark_unreadable(unreadable.name)

    def _on_error(self, error: Exception) -> None:
        self._last_error = error
        metrics.WATCH_RESTARTS.labels(self._kind.resource, type(error).__name__.lstrip("_")).inc()
        log.warning("watch restarted", extra={"resource": self._kind.resource, "error": str(error)})
        self._requests.wake()


def describe_missing_rule(plural: str) -> str:
    """Describe the missing RBAC rule, for a new version that runs with an old ClusterRole."""
    right = next(right for right in WATCHER.policy_rules if right.resource == plural)
    verbs = ", ".join(right.verbs)
    return f"missing RBAC rule: apiGroups [{right.group!r}], resources [{plural}], verbs [{verbs}]"
