"""Evaluates waiting requests again when a change may end the wait, and records Events for long waits."""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from libs.common.bus.delivery import Disposition, Nak
from libs.common.bus.flow import Flow
from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrObserved
from libs.common.contract.subjects import ENRICHED_CSR, OBSERVED_CSR
from libs.common.observability import metrics
from libs.common.service.service import run_every, run_together
from libs.common.service.waiting_objects import NameQueue
from services.csr.core.flow_state import FlowState
from services.csr.node_events import NodeEvents

CHECK_INTERVAL_SECONDS: Final = 1.0
BATCH_SECONDS: Final = 0.1  # changes within it lead to one evaluation
_WORKERS: Final = 8
_MAX_EVENTS_PER_CHECK: Final = 20  # an outage must not flood the API server with Events


@dataclass(eq=False, kw_only=True)
class WaitingRequestReconciler:
    """Runs in every replica; the fence rejects the second write, which does no harm."""

    flow: Flow
    state: FlowState
    node_events: NodeEvents
    handle: Callable[[Message], Awaitable[Disposition]]  # decides about one request, one at a time
    clock: Callable[[], float]  # monotonic, in seconds
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._queue = NameQueue()
        self._reasons: set[str] = set()
        self._was_paused = False

    def enqueue(self, names: Iterable[str]) -> None:
        """Evaluate these requests soon."""
        self._queue.add(names)

    async def run(self) -> None:
        """Run the workers and the periodic checks until cancelled."""
        workers = (self._queue.work(self._reconcile, delay_seconds=BATCH_SECONDS) for _ in range(_WORKERS))
        await run_together(*workers, run_every(CHECK_INTERVAL_SECONDS, self.run_periodic_checks))

    async def _reconcile(self, name: str) -> None:
        message = self.flow.cache.get(f"{ENRICHED_CSR}.{name}")
        if message is None or name not in self.state.requests.by_name:
            return
        disposition = await self.handle(message)
        if pending := self.state.requests.by_name.get(name):
            pending.retry_at = math.inf
            if isinstance(disposition, Nak):
                pending.retry_at = self.clock() + disposition.delay_seconds

    def run_periodic_checks(self) -> None:
        """Enqueue the due requests, record Events for long waits and update the metrics."""
        at, pending = self.clock(), self.state.requests.by_name
        due = [name for name, request in pending.items() if request.retry_at <= at]
        for name in due:
            pending[name].retry_at = math.inf
        self.enqueue(due)
        was_paused, self._was_paused = self._was_paused, bool(self.flow.list_pause_reasons())
        if was_paused and not self._was_paused:
            self.enqueue(self.state.list_newest())  # the bus may redeliver requeued ones only after a minute
        self._update_metrics()
        if self.flow.problems():
            return  # the cache may be incomplete: draw no conclusions
        for waiting in islice(self.state.waiting.take_unreported(at), _MAX_EVENTS_PER_CHECK):
            observed = self.flow.cache.get_event(f"{OBSERVED_CSR}.{waiting.name}")
            if isinstance(observed, CsrObserved) and observed.request.uid == waiting.uid:
                self.node_events.record_waiting(observed.request, waiting)

    def _update_metrics(self) -> None:
        counts = Counter(waiting.reason for waiting in self.state.waiting.by_name.values())
        for reason in self._reasons | counts.keys():
            metrics.CSR_WAITING.labels(reason).set(counts[reason])
        self._reasons |= counts.keys()
        newest = self.state.requests.list_newest()
        metrics.CSR_SUPERSEDED.set(len(self.state.requests.by_name) - len(newest))
        metrics.CSR_APPROVED_NOT_ISSUED.set(len(self.state.requests.awaiting_signer))
        ours = (pending for pending in newest if pending.node not in self.state.not_ours)
        oldest = min((pending.order.created_at for pending in ours), default=None)
        age = (self.now() - oldest).total_seconds() if oldest else 0.0
        metrics.CSR_OLDEST_PENDING_AGE.set(max(0.0, age))  # the API server's clock may be ahead of ours
