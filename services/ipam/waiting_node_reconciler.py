"""Retries waiting Nodes when a change may end the wait, and records Events for long waits."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from libs.common.bus.delivery import Disposition
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.subjects import ENRICHED_NODE
from libs.common.observability import metrics
from libs.common.service.service import run_every, run_together
from libs.common.service.waiting_objects import NameQueue, WaitingObjects
from services.ipam.core.pools import Pool
from services.ipam.on_node_enriched import OWN_WRITE_WAIT_SECONDS, WRITTEN, WaitingNode
from services.ipam.reports import NOT_AVAILABLE, NodeEvents

CHECK_INTERVAL_SECONDS: Final = 1.0
POOL_RETRY_SECONDS: Final = 3.0  # one Node per full pool retries: other replicas release blocks, too
_WORKERS: Final = 256  # they share writes
_MAX_EVENTS_PER_CHECK: Final = 20  # an outage must not flood the API server with Events


@dataclass(eq=False, kw_only=True)
class WaitingNodeReconciler:
    """Runs in every replica for the Nodes that it processed; claims are per uid, so races do no harm."""

    stream_cache: StreamCache
    waiting_nodes: WaitingObjects[WaitingNode]
    node_events: NodeEvents
    handle: Callable[[Message], Awaitable[Disposition]]  # processes one message, as for a delivery
    clock: Callable[[], float]  # monotonic, in seconds

    def __post_init__(self) -> None:
        self._queue = NameQueue()
        self._pools_tried_at: float | None = None

    def enqueue(self, names: Iterable[str]) -> None:
        """Retry these Nodes soon."""
        self._queue.add(names)

    def enqueue_all(self) -> None:
        """Retry all waiting Nodes, after a change that may concern each of them."""
        self.enqueue(name for name, node in self.waiting_nodes.by_name.items() if node.outcome != WRITTEN)

    def on_pool_freed(self, pools: tuple[Pool, ...]) -> None:
        """Retry the Nodes that wait for these pools: one of them just got a block."""
        self.enqueue(self.waiting_nodes.find_by_cause(pools))

    def reset(self) -> None:
        """Drop the queue, after the stream was replaced."""
        self._queue.clear()

    async def run(self) -> None:
        """Run the workers and the periodic checks until cancelled."""
        workers = (self._queue.work(self._retry) for _ in range(_WORKERS))
        await run_together(*workers, run_every(CHECK_INTERVAL_SECONDS, self.run_periodic_checks))

    async def _retry(self, name: str) -> None:
        message = self.stream_cache.get(f"{ENRICHED_NODE}.{name}")
        if message is not None and name in self.waiting_nodes.by_name:
            await self.handle(message)  # it never raises; the bus redelivers the message, too

    def run_periodic_checks(self) -> None:
        """Retry one Node per full pool and unobserved writes; record long waits and update the metrics."""
        at = self.clock()
        counts = Counter(node.outcome for node in self.waiting_nodes.by_name.values())
        for outcome in ("waiting", "unserved"):
            metrics.IPAM_NODES_WAITING.labels(outcome).set(counts[outcome])
        groups = self.waiting_nodes.by_cause
        metrics.IPAM_EXHAUSTED.set(sum(map(len, groups.values())))
        if self.stream_cache.problems():
            return  # the cache may be incomplete: draw no conclusions
        if groups and (self._pools_tried_at is None or at - self._pools_tried_at >= POOL_RETRY_SECONDS):
            self._pools_tried_at = at
            self.enqueue([next(iter(names)) for names in groups.values()])
        due = self.waiting_nodes.find_due(at)
        for node in due:  # the next retry, if this one fails
            self.waiting_nodes.add(msgspec.structs.replace(node, retry_at=at + OWN_WRITE_WAIT_SECONDS), at)
        self.enqueue(node.name for node in due)
        for node in islice(self.waiting_nodes.take_unreported(at), _MAX_EVENTS_PER_CHECK):
            self.node_events.record(node.name, node.uid, NOT_AVAILABLE, node.reason)
