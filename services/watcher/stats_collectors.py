"""Exports metrics of the durable consumers, the stream and the Nodes while this watcher leads."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final, NoReturn

from libs.common.bus.protocol import Bus, BusError, StreamStats
from libs.common.contract.node import Node
from libs.common.observability import metrics
from services.watcher.core.stall_detector import StallDetector, filter_relevant
from services.watcher.core.store import Store
from services.watcher.resync_requests import ResyncRequests

log = logging.getLogger(__name__)

STATS_INTERVAL_SECONDS: Final = 15.0
_NODE_STATS_INTERVAL_SECONDS: Final = 5.0  # a scrape asks no more often
_STREAM_GAUGES: Final = (
    metrics.QUEUE_PENDING,
    metrics.QUEUE_UNACKNOWLEDGED,
    metrics.QUEUE_REDELIVERED,
    metrics.QUEUE_STALLED,
    metrics.STREAM_MESSAGES,
    metrics.STREAM_BYTES,
    metrics.STREAM_MAX_BYTES,
    metrics.DEAD_LETTERS_STORED,
)


@dataclass(eq=False)
class StreamStatsCollector:
    """Collects stream stats at once, then periodically; unknown values are removed from the metrics."""

    bus: Bus
    _: KW_ONLY
    expected_durables: frozenset[str]  # the durables that must be consumed
    clock: Callable[[], float]  # monotonic, in seconds
    # receives the stats of each successful query
    on_stats: Callable[[StreamStats], None] = lambda stats: None
    interval_seconds: float = STATS_INTERVAL_SECONDS

    def __post_init__(self) -> None:
        self._stall_detector = StallDetector()
        self._last_error = ""

    async def run(self) -> NoReturn:
        """Collect until cancelled; failures are only logged."""
        try:
            while True:
                await self._collect()
                await asyncio.sleep(self.interval_seconds)
        finally:
            _clear_gauges(_STREAM_GAUGES)

    async def _collect(self) -> None:
        try:
            stats = await self.bus.stats()
        except BusError as error:
            _clear_gauges(_STREAM_GAUGES)
            if not self._last_error:  # log an outage once
                log.warning("cannot read stream stats", extra={"error": str(error)})
            self._last_error = str(error)
            return
        self._last_error = ""
        self._export(stats)
        self.on_stats(stats)

    def _export(self, stats: StreamStats) -> None:
        queues = filter_relevant(stats.consumers, self.expected_durables)
        stalled = self._stall_detector.measure_stalls(queues, self.clock())
        metrics.QUEUE_PENDING.set_series({(each.name,): each.pending for each in queues})
        metrics.QUEUE_UNACKNOWLEDGED.set_series({(each.name,): each.unacknowledged for each in queues})
        metrics.QUEUE_REDELIVERED.set_series({(each.name,): each.redelivered for each in queues})
        metrics.QUEUE_STALLED.set_series({(name,): seconds for name, seconds in stalled.items()})
        metrics.STREAM_MESSAGES.set_series({(): stats.messages})
        metrics.STREAM_BYTES.set_series({(): stats.bytes})
        metrics.STREAM_MAX_BYTES.set_series({(): stats.max_bytes})
        metrics.DEAD_LETTERS_STORED.set_series({(): stats.dead_letters})


@dataclass(eq=False)
class NodeStatsCollector:
    """Counts initialized and uninitialized Nodes again after a change, at most every 5 s."""

    store: Store[Node]
    requests: ResyncRequests  # counts the changes
    now: Callable[[], datetime]

    async def run(self) -> NoReturn:
        """Count until cancelled."""
        counted_changes = -1
        try:
            while True:
                if self.store.has_synced:
                    if self.requests.change_count != counted_changes:
                        counted_changes = self.requests.change_count
                        oldest = self._count()
                    age = (self.now() - oldest).total_seconds() if oldest is not None else 0.0
                    metrics.OLDEST_UNINITIALIZED.set_series({(): max(0.0, age)})
                await asyncio.sleep(_NODE_STATS_INTERVAL_SECONDS)
        finally:
            _clear_gauges((metrics.NODES, metrics.OLDEST_UNINITIALIZED))

    def _count(self) -> datetime | None:
        """Count the Nodes; return the creation time of the oldest uninitialized one, None without one."""
        waiting = [node.metadata.creation_timestamp for node in self.store if not node.is_initialized]
        metrics.NODES.set_series(
            {("usable",): len(self.store) - len(waiting), ("uninitialized",): len(waiting)}
        )
        return min((created for created in waiting if created is not None), default=None)


def _clear_gauges(gauges: Iterable[metrics.OptionalGauge]) -> None:
    for gauge in gauges:
        gauge.set_series({})
