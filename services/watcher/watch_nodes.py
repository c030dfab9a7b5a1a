"""Keeps the picture of the cluster up to date with what the API server tells; passes on whom it concerns."""

import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import NoReturn, Protocol

from libs.common import metrics
from libs.common.kube_api.happenings import Bookmark, Changed, Deleted, Happening, Listed
from libs.common.kube_api.objects import UnreadableObject
from libs.common.node import Node
from services.watcher.cluster import Cluster

log = logging.getLogger(__name__)
_RESOURCE = "nodes"


class NodeSource(Protocol):
    """Where Nodes are heard of: `kube_api.reflector.Reflector`, or a script of what it says."""

    def problems(self) -> tuple[str, ...]:
        """Why what was told may be out of date, in words for /readyz."""

    def freshness(self) -> float | None:
        """Seconds since the API server last said anything, None before the first word."""

    async def run(self, handle: Callable[[Happening[Node]], Awaitable[None]]) -> NoReturn:
        """First a list, then changes; again a list whenever changes may have been missed."""


NodeSourceMaker = Callable[[Callable[[UnreadableObject], None], Callable[[Exception], None]], NodeSource]


class NodeWatch:
    """One list and its watch, for as long as one term lasts."""

    def __init__(
        self,
        source: NodeSourceMaker,
        cluster: Cluster,
        *,
        now: Callable[[], datetime],
        on_rewound: Callable[[], None],
        on_news: Callable[[Collection[str]], None],
    ) -> None:
        """`on_news` hears which names are to be looked at again, after each list even if there are none;
        `on_rewound` that a list is older than what was known before it. Both hear it at once.
        """
        self._source = source(self._on_unreadable, self._on_trouble)
        self._cluster = cluster
        self._now = now
        self._on_rewound = on_rewound
        self._on_news = on_news
        self._unreadable: dict[str, str] = {}

    def problems(self) -> tuple[str, ...]:
        """Why the picture may be out of date, in words for /readyz."""
        return self._source.problems()

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        # Asked for when it is scraped: a quiet cluster tells nothing that happens, for hours, and is fresh.
        metrics.WATCH_LAST_HEARD.labels(_RESOURCE).set_function(self._last_heard)
        await self._source.run(self._on_happening)

    def _last_heard(self) -> float:
        age = self._source.freshness()
        return 0.0 if age is None else self._now().timestamp() - age

    async def _on_happening(self, happening: Happening[Node]) -> None:
        match happening:
            case Listed(items=nodes, resource_version=version, unreadable=unreadable):
                known = self._cluster.seen_version
                news = self._cluster.replace(nodes, unreadable, version)
                if self._cluster.seen_version < known:
                    self._on_rewound()
                log.info("nodes listed", extra={"nodes": len(nodes), "changed": len(news)})
                self._on_news(news)
            case Changed(item=node):
                if self._cluster.put(node):
                    self._on_news((node.name,))
            case Deleted(item=node):
                self._cluster.remove(node.name, node.metadata.resource_version)
                self._on_news((node.name,))
            case Bookmark(resource_version=version):
                self._cluster.saw(version)

    def _on_unreadable(self, unreadable: UnreadableObject) -> None:
        if self._unreadable.get(unreadable.name) != unreadable.reason:
            log.error(
                "a node cannot be read and is left out, the others are not",
                extra={"node": unreadable.name, "reason": unreadable.reason},
            )
        metrics.PUBLISHED.labels("flow.observed.node", "unreadable").inc()
        self._unreadable[unreadable.name] = unreadable.reason
        self._cluster.cannot_read(unreadable.name)

    def _on_trouble(self, error: Exception) -> None:
        metrics.WATCH_RESTARTS.labels(_RESOURCE, type(error).__name__.lstrip("_")).inc()
        log.warning("the watch of nodes is opened again", extra={"error": str(error)})
