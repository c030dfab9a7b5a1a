"""Reconciles enqueued Nodes one at a time, and enqueues failed Nodes again periodically."""

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from libs.common.bus.delivery import PermanentError, TemporaryError
from libs.common.observability import metrics
from libs.common.service.run_together import run_every, run_together
from libs.common.service.waiting_objects import NameQueue
from services.lifecycle.node_index import NodeIndex
from services.lifecycle.on_node_enriched import OnNodeEnriched

log = logging.getLogger(__name__)


@dataclass(eq=False)
class NodeReconciler:
    """The queue of lifecycle. It works on one Node at a time, so that two deletions never race."""

    on_node_enriched: OnNodeEnriched
    node_index: NodeIndex
    _: KW_ONLY
    can_reconcile: Callable[[], bool]  # whether this replica leads and may write
    requeues_all: bool  # each requeue includes Nodes without a change, because their age matters
    requeue_interval_seconds: float

    def __post_init__(self) -> None:
        self._queue = NameQueue()
        self._retries: set[str] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        await run_together(
            self._queue.work(self._reconcile), run_every(self.requeue_interval_seconds, self.requeue)
        )

    def enqueue(self, name: str) -> None:
        """Reconcile this Node soon, if it needs that."""
        if self.on_node_enriched.needs_reconcile(name):
            self._queue.add([name])

    def enqueue_all(self) -> None:
        """Reconcile every Node that needs it."""
        for name in self.node_index.list_names():
            self.enqueue(name)

    def requeue(self) -> None:
        """Enqueue the Nodes that failed or came while this replica could not reconcile."""
        metrics.LIFECYCLE_PROVING.set(self.node_index.count_histories())
        again, self._retries = self._retries, set()
        for name in again:
            self.enqueue(name)
        if self.requeues_all:
            self.enqueue_all()

    def clear(self) -> None:
        """Drop everything, after the stream was replaced."""
        self._queue.clear()
        self._retries.clear()

    async def _reconcile(self, name: str) -> None:
        if not self.can_reconcile():
            self._retries.add(name)
            return
        try:
            await self.on_node_enriched(name)
        except (TemporaryError, PermanentError) as error:
            log.warning("reconcile failed, will retry", extra={"node": name, "error": str(error)})
            self._retries.add(name)
        except Exception:
            # Nodes and machines contain untrusted texts: a defect that one triggers must not stop the others.
            log.exception("reconcile failed", extra={"node": name})
