"""Keeps a store up to date with what the API server tells; passes on whom it concerns."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Generic, NoReturn, Protocol

import msgspec

from libs.common import metrics
from libs.common.delivery import TemporaryError
from libs.common.kube_api.errors import Forbidden, KubeError
from libs.common.kube_api.happenings import Bookmark, Changed, Deleted, Happening, Listed
from libs.common.kube_api.objects import UnreadableObject
from libs.common.node import Node, version_number
from libs.common.signing_request import SigningRequest
from libs.common.subjects import ROOT
from libs.common.wiring import WATCHER
from services.watcher.kinds import Kind, Seen
from services.watcher.store import Store

log = logging.getLogger(__name__)


class ObjectSource(Protocol[Seen]):
    """Where objects are heard of: `kube_api.reflector.Reflector`, or a script of what it says."""

    def problems(self) -> tuple[str, ...]:
        """Why what was told may be out of date, in words for /readyz."""

    def freshness(self) -> float | None:
        """Seconds since the API server last said anything, None before the first word."""

    async def absent_as_of(self, name: str) -> str | None:
        """The resourceVersion as of which no object has that name, None if one has. Raises KubeError."""

    async def run(self, handle: Callable[[Happening[Seen]], Awaitable[None]]) -> NoReturn:
        """First a list, then changes; again a list whenever changes may have been missed."""


SourceMaker = Callable[[Callable[[UnreadableObject], None], Callable[[Exception], None]], ObjectSource[Seen]]


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Where each kind is heard of."""

    nodes: SourceMaker[Node]
    requests: SourceMaker[SigningRequest]


class ObjectWatch(Generic[Seen]):
    """One list and its watch, for as long as one term lasts."""

    def __init__(
        self,
        kind: Kind[Seen],
        source: SourceMaker[Seen],
        store: Store[Seen],
        *,
        now: Callable[[], datetime],
        on_rewound: Callable[[], None],
        on_news: Callable[[Collection[str]], None],
    ) -> None:
        """`on_news` hears which names are to be looked at again, after a list or a failure even if none are;
        `on_rewound` that a list is older than what was known before it. Both hear it at once.
        """
        self._kind = kind
        self._source = source(self._on_unreadable, self._on_trouble)
        self._store = store
        self._now = now
        self._on_rewound = on_rewound
        self._on_news = on_news
        self._unreadable: dict[str, str] = {}
        self._trouble: Exception | None = None
        # One at a time: many slow lists would take the connections that the renewals of the Lease need.
        self._confirming = asyncio.Semaphore(1)

    @property
    def failing(self) -> bool:
        """Whether the last try to hear of it failed."""
        return self._trouble is not None

    def problems(self) -> tuple[str, ...]:
        """Why the store may be out of date, in words for /readyz."""
        problems = self._source.problems()
        if problems and isinstance(self._trouble, Forbidden):
            return (*problems, _missing_rule(self._kind.plural))
        return problems

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        # Asked for when it is scraped: a quiet cluster tells nothing that happens, for hours, and is fresh.
        metrics.WATCH_LAST_HEARD.labels(self._kind.plural).set_function(self._last_heard)
        await self._source.run(self._on_happening)

    async def absent_as_of(self, name: str) -> int | None:
        """Ask the API server, past the watch. Raises TemporaryError if it does not answer."""
        try:
            async with self._confirming:
                version = await self._source.absent_as_of(name)
        except KubeError as error:
            raise TemporaryError(f"cannot confirm that a {self._kind.noun} is gone", str(error)) from error
        return None if version is None else version_number(version)

    def _last_heard(self) -> float:
        age = self._source.freshness()
        return 0.0 if age is None else self._now().timestamp() - age

    async def _on_happening(self, happening: Happening[Seen]) -> None:
        self._trouble = None
        match happening:
            case Listed():
                self._on_listed(happening)
            case Changed(item=changed):
                if news := self._store.put(changed):
                    self._on_news(news)
            case Deleted(item=deleted):
                self._store.remove(deleted.name, deleted.metadata.resource_version)
                self._on_news((deleted.name,))
            case Bookmark(resource_version=version):
                self._store.saw(version)

    def _on_listed(self, listed: Listed[Seen]) -> None:
        known = self._store.seen_version
        news = self._store.replace(listed.items, listed.unreadable, listed.resource_version)
        self._unreadable = {n: why for n, why in self._unreadable.items() if n in listed.unreadable}
        if self._store.seen_version < known:
            self._on_rewound()
        told = {"resource": self._kind.plural, "objects": len(listed.items), "changed": len(news)}
        log.info("listed", extra=told)
        self._on_news(news)

    def _on_unreadable(self, unreadable: UnreadableObject) -> None:
        if self._unreadable.get(unreadable.name) != unreadable.reason:
            log.error(
                "an object cannot be read and is left out, the others are not",
                extra={self._kind.noun: unreadable.name, "reason": unreadable.reason},
            )
        metrics.PUBLISHED.labels(self._kind.subject.removeprefix(f"{ROOT}."), "unreadable").inc()
        self._unreadable[unreadable.name] = unreadable.reason
        self._store.cannot_read(unreadable.name)

    def _on_trouble(self, error: Exception) -> None:
        self._trouble = error
        metrics.WATCH_RESTARTS.labels(self._kind.plural, type(error).__name__.lstrip("_")).inc()
        log.warning("a watch is opened again", extra={"resource": self._kind.plural, "error": str(error)})
        self._on_news(())


def _missing_rule(plural: str) -> str:
    """For who brings a new version to an old ClusterRole."""
    right = next(right for right in WATCHER.rights if right.resource == plural)
    verbs = ", ".join(right.verbs)
    return f"missing RBAC rule: apiGroups [{right.group!r}], resources [{plural}], verbs [{verbs}]"
