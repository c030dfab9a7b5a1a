"""Keeps what the API server has up to date in this process, and has the changed objects published."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, NoReturn, Protocol

from libs.common.bus.delivery import TemporaryError
from libs.common.contract.node import parse_resource_version
from libs.common.contract.services import WATCHER
from libs.common.contract.subjects import ROOT
from libs.common.kube.errors import Forbidden, KubeError, NotFound
from libs.common.kube.objects import SERVICE_CIDRS, Item, ServiceCidr, UnreadableObject
from libs.common.kube.watch_events import Bookmark, Changed, Deleted, ListSnapshot, WatchEvent
from libs.common.observability import metrics
from libs.common.service.service import run_together
from services.watcher.core.kinds import ObjectT
from services.watcher.core.leader_epoch import LeaderEpoch
from services.watcher.observation_publisher import ObservationPublisher
from services.watcher.resync_requests import ResyncRequests

log = logging.getLogger(__name__)


class ObjectSource(Protocol[Item]):
    """Lists and watches one kind: `libs.common.kube.reflector.Reflector`, or a scripted fake in tests."""

    def problems(self) -> tuple[str, ...]:
        """Return why the received objects may be out of date, in words for /readyz."""

    def seconds_since_contact(self) -> float | None:
        """Return the seconds since the API server last responded; None before the first response."""

    async def absent_as_of_version(self, name: str, is_relevant: Callable[[Item], bool]) -> str | None:
        """As `Reflector.absent_as_of_version`."""

    async def run(self, handle: Callable[[WatchEvent[Item]], Awaitable[None]]) -> NoReturn:
        """List, then watch; list again whenever changes may have been missed."""


ObjectSourceFactory = Callable[
    [Callable[[UnreadableObject], None], Callable[[Exception], None]], ObjectSource[Item]
]


class Informer(Generic[ObjectT]):
    """Lists, watches and publishes one kind during one leadership term.

    Each kind joins a resync round on its own, once it is listed, because the list of another kind may fail.
    """

    def __init__(
        self,
        source: ObjectSourceFactory[ObjectT],
        publisher: ObservationPublisher[ObjectT],
        epoch: LeaderEpoch,
    ) -> None:
        self.publisher = publisher
        self.store = publisher.store
        self._kind = publisher.kind
        self._source = source(self._on_unreadable, self._on_error)
        self._epoch = epoch
        self._last_error: Exception | None = None
        # One at a time: many slow lists would occupy the connections that Lease renewals need.
        self._confirm_slot = asyncio.Semaphore(1)

    @property
    def is_sync_pending(self) -> bool:
        """Whether the first list is still expected: it has neither arrived nor failed."""
        return not self.store.has_synced and self._last_error is None

    @property
    def is_missing_from_round(self) -> bool:
        """Whether the kind was listed after the round had begun, so the round does not include it."""
        return self.store.has_synced and not self.publisher.is_in_round

    def problems(self) -> tuple[str, ...]:
        """Return why objects of this kind may be missing in the stream, in words for /readyz."""
        problems = self._source.problems()
        if problems and isinstance(self._last_error, Forbidden):
            problems = (*problems, _describe_missing_rule(self._kind.resource))
        return (*problems, *self.publisher.problems())

    async def run(self) -> None:
        """List, watch and publish until cancelled."""
        # Computed at each scrape: a quiet cluster sends no event for hours, and the store is still up to
        # date.
        metrics.WATCH_LAST_CONTACT.labels(self._kind.resource).set_function(self._last_contact)
        await run_together(
            self.publisher.run(self.absent_as_of_version), self._source.run(self._on_watch_event)
        )

    async def absent_as_of_version(self, name: str) -> int | None:
        """Return the resourceVersion at which no relevant object has that name; None if one has.

        Lists that one name at the API server. Raises TemporaryError if the server does not answer.
        """
        try:
            async with self._confirm_slot:
                version = await self._source.absent_as_of_version(name, self._kind.is_relevant)
        except KubeError as error:
            raise TemporaryError(
                f"cannot confirm that a {self._kind.log_field} is gone", str(error)
            ) from error
        return None if version is None else parse_resource_version(version)

    def _last_contact(self) -> float:
        age = self._source.seconds_since_contact()
        return 0.0 if age is None else self.publisher.now().timestamp() - age

    async def _on_watch_event(self, event: WatchEvent[ObjectT]) -> None:
        changed_names = self._apply(event)
        if changed_names or isinstance(event, ListSnapshot):
            self.publisher.enqueue(changed_names)
            self.publisher.requests.wake()

    def _apply(self, event: WatchEvent[ObjectT]) -> Collection[str]:
        """Apply the event to the store and return the names of changed objects."""
        self._last_error = None
        match event:
            case ListSnapshot():
                return self._apply_list(event)
            case Changed(item=changed):
                return self.store.put(changed)
            case Deleted(item=deleted):
                self.store.remove(deleted.key, deleted.metadata.resource_version)
                return (deleted.key,)
            case Bookmark(resource_version=version):
                self.store.advance_version(version)
        return ()

    def _apply_list(self, listed: ListSnapshot[ObjectT]) -> Collection[str]:
        known = self.store.last_resource_version
        changed_names = self.store.replace(listed.items, listed.unreadable, listed.resource_version)
        # Soon after a restore from a recent backup, etcd has passed the known version. Objects have not.
        has_later = any(self.publisher.published.has_later(self._kind, each) for each in listed.items)
        if self.store.last_resource_version < known or has_later:
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
        if self.store.mark_unreadable(unreadable.name, unreadable.reason):
            log.error(
                "object skipped: cannot be decoded",
                extra={self._kind.log_field: unreadable.name, "reason": unreadable.reason},
            )
        metrics.PUBLISHED.labels(self._kind.subject.removeprefix(f"{ROOT}."), "unreadable").inc()

    def _on_error(self, error: Exception) -> None:
        self._last_error = error
        _report_restart(self._kind.resource, error)
        self.publisher.requests.wake()


class ServiceCidrInformer:
    """Lists and watches ServiceCIDRs during one leadership term; each snapshot has their ranges."""

    def __init__(self, source: ObjectSourceFactory[ServiceCidr], requests: ResyncRequests) -> None:
        self._source = source(self._on_unreadable, self._on_error)
        self._requests = requests
        self._ranges: Mapping[str, tuple[str, ...]] | None = None  # by name; None before the first list
        self._unreadable: frozenset[str] = frozenset()
        self._last_error: Exception | None = None

    @property
    def cidrs(self) -> tuple[str, ...] | None:
        """The ranges of all objects, terminating ones included; None while any of them may be missing."""
        if self._ranges is None or self._unreadable:
            return None
        return tuple(sorted({cidr for cidrs in self._ranges.values() for cidr in cidrs}))

    @property
    def is_sync_pending(self) -> bool:
        """Whether the first list is still expected: it has neither arrived nor failed."""
        return self._ranges is None and self._last_error is None

    def problems(self) -> tuple[str, ...]:
        """Return why the ranges may be unknown or out of date, in words for /readyz."""
        unreadable = tuple(f"ServiceCIDR {name} cannot be decoded" for name in sorted(self._unreadable))
        if isinstance(self._last_error, NotFound):
            return unreadable
        problems = (*self._source.problems(), *unreadable)
        missing = isinstance(self._last_error, Forbidden) and bool(problems)
        return (*problems, _describe_missing_rule(SERVICE_CIDRS.plural)) if missing else problems

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        await self._source.run(self._on_watch_event)

    async def _on_watch_event(self, event: WatchEvent[ServiceCidr]) -> None:
        self._last_error = None
        known = self._ranges or {}
        match event:
            case ListSnapshot(items=items, unreadable=unreadable):
                self._ranges = {item.name: item.spec.cidrs for item in items}
                self._unreadable = frozenset(unreadable)
            case Changed(item=item):
                self._ranges = {**known, item.name: item.spec.cidrs}
                self._unreadable -= {item.name}
            case Deleted(item=item):
                self._ranges = {name: cidrs for name, cidrs in known.items() if name != item.name}
                self._unreadable -= {item.name}
        self._requests.wake()

    def _on_unreadable(self, unreadable: UnreadableObject) -> None:
        log.error(
            "object skipped: cannot be decoded",
            extra={"servicecidr": unreadable.name, "reason": unreadable.reason},
        )
        self._unreadable |= {unreadable.name}
        self._requests.wake()

    def _on_error(self, error: Exception) -> None:
        """Record a failure. It changes no known ranges: only an API server without this API has none."""
        is_new = type(error) is not type(self._last_error)
        self._last_error = error
        if isinstance(error, NotFound):
            if self._ranges is None:
                self._ranges = {}
                log.info("ServiceCIDRs not served by this API server", extra={"error": str(error)})
        else:
            _report_restart(SERVICE_CIDRS.plural, error, is_logged=is_new)
        self._requests.wake()


def _report_restart(resource: str, error: Exception, *, is_logged: bool = True) -> None:
    metrics.WATCH_RESTARTS.labels(resource, type(error).__name__.lstrip("_")).inc()
    if is_logged:
        log.warning("watch restarted", extra={"resource": resource, "error": str(error)})


def _describe_missing_rule(plural: str) -> str:
    """Describe the missing RBAC rule, for a new version that runs with an old ClusterRole."""
    right = next(right for right in WATCHER.policy_rules if right.resource == plural)
    verbs = ", ".join(right.verbs)
    return f"missing RBAC rule: apiGroups [{right.group!r}], resources [{plural}], verbs [{verbs}]"
