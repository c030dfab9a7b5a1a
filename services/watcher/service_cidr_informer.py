"""Follows the ServiceCIDR objects; each snapshot of the stream has their ranges."""

import logging
from collections.abc import Mapping
from typing import NoReturn

from libs.common.kube.errors import Forbidden, NotFound
from libs.common.kube.objects import SERVICE_CIDRS, ServiceCidr, UnreadableObject
from libs.common.kube.watch_events import Changed, Deleted, ListSnapshot, WatchEvent
from libs.common.observability import metrics
from services.watcher.informer import ObjectSourceFactory, describe_missing_rule
from services.watcher.resync_requests import ResyncRequests

log = logging.getLogger(__name__)


class ServiceCidrInformer:
    """Lists and watches ServiceCIDRs during one leadership term."""

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
        return (*problems, describe_missing_rule(SERVICE_CIDRS.plural)) if missing else problems

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
            metrics.WATCH_RESTARTS.labels(SERVICE_CIDRS.plural, type(error).__name__.lstrip("_")).inc()
            if is_new:
                log.warning("watch restarted", extra={"resource": SERVICE_CIDRS.plural, "error": str(error)})
        self._requests.wake()
