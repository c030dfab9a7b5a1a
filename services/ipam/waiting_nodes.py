"""The Nodes without pod CIDRs: processed again when a change may end the wait, with Events for long waits."""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

import msgspec

from libs.common.bus.delivery import Disposition
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.node import Node
from libs.common.contract.subjects import ENRICHED_NODE
from libs.common.observability import metrics
from libs.common.service.service import run_every, run_together
from libs.common.service.waiting_objects import NameQueue, WaitingObject, WaitingObjects
from services.ipam.core.pools import Pool
from services.ipam.reports import NOT_AVAILABLE, NodeEvents

CHECK_INTERVAL_SECONDS: Final = 1.0
POOL_RETRY_SECONDS: Final = 3.0  # one Node per full pool retries: other replicas release blocks, too
# for the observation of an own write; then the observed state counts: etcd may be restored from a backup
OWN_WRITE_WAIT_SECONDS: Final = 20.0
_WORKERS: Final = 256  # they share writes
_MAX_EVENTS_PER_CHECK: Final = 20  # an outage must not flood the API server with Events

WaitingOutcome = Literal[
    "waiting",  # a fact is missing
    "unserved",  # an operator must change the configuration
    "not-ours",  # another controller's Node; it gets no Event and waits for another file
    "written",  # its pod CIDRs were written or listed a moment ago, and are not observed yet
    "removed",  # it was observed with pod CIDRs and now has none: etcd was restored from a backup
]


class WaitingNode(WaitingObject, frozen=True, kw_only=True):
    """A Node that got no pod CIDRs yet."""

    outcome: WaitingOutcome
    full_pools: tuple[Pool, ...] = ()  # pools of this Node without a free block

    @property
    def causes(self) -> tuple[tuple[Pool, ...], ...]:
        """The full pools: a block of all of them ends the wait."""
        return (self.full_pools,) if self.full_pools else ()

    @property
    def is_reported(self) -> bool:
        """Whether the Node lacks pod CIDRs that ipam must allocate."""
        return self.outcome in ("waiting", "unserved")


@dataclass(eq=False, kw_only=True)
class WaitingNodes:
    """In every replica the Nodes that it processed; claims are per uid, so races do no harm."""

    stream_cache: StreamCache
    node_events: NodeEvents
    clock: Callable[[], float]  # monotonic, in seconds

    def __post_init__(self) -> None:
        self._objects = WaitingObjects[WaitingNode]()
        self._queue = NameQueue()
        self._pools_tried_at: float | None = None

    def __len__(self) -> int:
        return len(self._objects.by_name)

    def add(
        self, node: Node, outcome: WaitingOutcome, reason: str, full_pools: tuple[Pool, ...] = ()
    ) -> None:
        """Record that a Node waits."""
        delay = {"written": OWN_WRITE_WAIT_SECONDS, "removed": 0.0}.get(outcome, math.inf)
        at = self.clock()
        wait = WaitingNode(
            name=node.name,
            uid=node.uid,
            outcome=outcome,
            reason=reason,
            full_pools=full_pools,
            retry_at=at + delay,
        )
        self._objects.add(wait, at)
        if outcome == "removed":
            self.enqueue((node.name,))  # metadata publishes nothing: the facts of the machine are the same

    def add_written(self, node: Node, reason: str) -> None:
        """Record a written Node; it is processed again if its pod CIDRs are not observed in time.

        The Nodes that waited for the same pools are processed: one of them just got a block.
        """
        waited = self.remove(node.name)
        self.add(node, "written", reason)
        if waited is not None and waited.full_pools:
            self.enqueue(self._objects.find_by_cause(waited.full_pools))

    def remove(self, name: str) -> WaitingNode | None:
        """Remove and return a Node that waits no longer."""
        return self._objects.finish(name, name)

    def get_outcome(self, node: Node) -> WaitingOutcome | None:
        """Return why that very Node waits; None if it does not."""
        wait = self._objects.by_name.get(node.name)
        return wait.outcome if wait is not None and wait.uid == node.uid else None

    def awaits_observation(self, node: Node) -> bool:
        """Whether the pod CIDRs of that very Node were written a moment ago and are not observed yet."""
        waited = self._objects.waiting_seconds(node.name, self.clock())
        return self.get_outcome(node) == "written" and waited < OWN_WRITE_WAIT_SECONDS

    def clear(self) -> None:
        """Drop everything, after the stream was replaced."""
        self._objects.clear()
        self._queue.clear()

    def enqueue(self, names: Iterable[str]) -> None:
        """Process these Nodes soon."""
        self._queue.add(names)

    def enqueue_all(self) -> None:
        """Process all waiting Nodes, after a change that may concern each of them."""
        self.enqueue(name for name, node in self._objects.by_name.items() if node.outcome != "written")

    async def run(self, handle: Callable[[Message], Awaitable[Disposition]]) -> None:
        """Run the workers and the periodic checks until cancelled; `handle` processes a message again."""

        async def retry(name: str) -> None:
            message = self.stream_cache.get(f"{ENRICHED_NODE}.{name}")
            if message is not None:
                await handle(message)  # it never raises; the bus, or metadata's next message, tries again

        workers = (self._queue.work(retry) for _ in range(_WORKERS))
        await run_together(*workers, run_every(CHECK_INTERVAL_SECONDS, self.run_periodic_checks))

    def run_periodic_checks(self) -> None:
        """Process one Node per full pool and unobserved writes; record long waits and update the metrics."""
        at = self.clock()
        counts = Counter(node.outcome for node in self._objects.by_name.values())
        metrics.IPAM_NODES_WAITING.labels("waiting").set(counts["waiting"])
        metrics.IPAM_NODES_WAITING.labels("unserved").set(counts["unserved"])
        groups = self._objects.by_cause
        metrics.IPAM_EXHAUSTED.set(sum(map(len, groups.values())))
        if self.stream_cache.problems():
            return  # the cache may be incomplete: draw no conclusions
        if groups and (self._pools_tried_at is None or at - self._pools_tried_at >= POOL_RETRY_SECONDS):
            self._pools_tried_at = at
            self.enqueue([next(iter(names)) for names in groups.values()])
        due = self._objects.find_due(at)
        for node in due:  # the next retry, if this one fails
            self._objects.add(msgspec.structs.replace(node, retry_at=at + OWN_WRITE_WAIT_SECONDS), at)
        self.enqueue(node.name for node in due)
        for node in islice(self._objects.take_unreported(at), _MAX_EVENTS_PER_CHECK):
            self.node_events.record(node.name, node.uid, NOT_AVAILABLE, node.reason)
