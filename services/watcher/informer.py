"""Keeps a store up to date with the API server, and passes on the names of changed objects."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Generic, NoReturn, Protocol

import msgspec

from libs.common.bus.delivery import TemporaryError
from libs.common.contract.node import Node, parse_resource_version
from libs.common.contract.services import WATCHER
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import ROOT
from libs.common.kube.errors import Forbidden, KubeError
from libs.common.kube.objects import Item, ServiceCidr, UnreadableObject
from libs.common.kube.watch_events import Bookmark, Changed, Deleted, ListSnapshot, WatchEvent
from libs.common.observability import metrics
from services.watcher.kinds import Kind, ObjectT
from services.watcher.store import Store

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


class ObjectSources(msgspec.Struct, frozen=True, kw_only=True):
    """The object source of each kind."""

    nodes: ObjectSourceFactory[Node]
    requests: ObjectSourceFactory[SigningRequest]
    service_cidrs: ObjectSourceFactory[ServiceCidr]


class Informer(Generic[ObjectT]):
    """Lists and watches one kind during one leadership term."""

    def __init__(
        self,
        kind: Kind[ObjectT],
        source: ObjectSourceFactory[ObjectT],
        store: Store[ObjectT],
        *,
        now: Callable[[], datetime],
        has_later: Callable[[ObjectT], bool],
        on_rewound: Callable[[], None],
        on_changed_names: Callable[[Collection[str]], None],
    ) -> None:
        """All callbacks are called synchronously.

        `on_changed_names` receives the names to reconcile (possibly none) after a list, a change or a
        failure. `has_later` returns whether the stream has a later state than an object of a list.
        `on_rewound` is called when a list or one of its objects is older than the known state.
        """
        self._kind = kind
        self._source = source(self._on_unreadable, self._on_error)
        self._store = store
        self._now = now
        self._has_later = has_later
        self._on_rewound = on_rewound
        self._on_changed_names = on_changed_names
        self._unreadable: dict[str, str] = {}
        self._last_error: Exception | None = None
        # One at a time: many slow lists would occupy the connections that Lease renewals need.
        self._confirm_slot = asyncio.Semaphore(1)

    @property
    def is_failing(self) -> bool:
        """Whether the last list or watch failed."""
        return self._last_error is not None

    def problems(self) -> tuple[str, ...]:
        """Return why the store may be out of date, in words for /readyz."""
        problems = self._source.problems()
        if problems and isinstance(self._last_error, Forbidden):
            return (*problems, describe_missing_rule(self._kind.resource))
        return problems

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        # Computed at each scrape: a quiet cluster sends no event for hours, and the store is still up to
        # date.
        metrics.WATCH_LAST_CONTACT.labels(self._kind.resource).set_function(self._last_contact)
        await self._source.run(self._on_watch_event)

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

    async def _on_watch_event(self, event: WatchEvent[ObjectT]) -> None:
        self._last_error = None
        match event:
            case ListSnapshot():
                self._on_listed(event)
            case Changed(item=changed):
                if changed_names := self._store.put(changed):
                    self._on_changed_names(changed_names)
            case Deleted(item=deleted):
                self._store.remove(deleted.name, deleted.metadata.resource_version)
                self._on_changed_names((deleted.name,))
            case Bookmark(resource_version=version):
                self._store.advance_version(version)

    def _on_listed(self, listed: ListSnapshot[ObjectT]) -> None:
        known = self._store.last_resource_version
        changed_names = self._store.replace(listed.items, listed.unreadable, listed.resource_version)
        self._unreadable = {n: why for n, why in self._unreadable.items() if n in listed.unreadable}
        # Soon after a restore from a recent backup, etcd has passed the known version. Objects have not.
        if self._store.last_resource_version < known or any(map(self._has_later, listed.items)):
            self._on_rewound()
        fields = {
            "resource": self._kind.resource,
            "objects": len(listed.items),
            "changed": len(changed_names),
        }
        log.info("objects listed", extra=fields)
        self._on_changed_names(changed_names)

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
        self._on_changed_names(())


def describe_missing_rule(plural: str) -> str:
    """Describe the missing RBAC rule, for a new version that runs with an old ClusterRole."""
    right = next(right for right in WATCHER.policy_rules if right.resource == plural)
    verbs = ", ".join(right.verbs)
    return f"missing RBAC rule: apiGroups [{right.group!r}], resources [{plural}], verbs [{verbs}]"
