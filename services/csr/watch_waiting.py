"""Decides again what waits, as soon as anything changes on which it waits; tells of what waits for long."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from itertools import islice
from typing import Final

from libs.common import metrics
from libs.common.bus import Message, Unreadable
from libs.common.delivery import Nak, Verdict
from libs.common.events import CsrObserved, Event
from libs.common.flow_table import FlowTable
from libs.common.subjects import ENRICHED_CSR, OBSERVED_CSR
from libs.common.watch_flow import WatchFlow
from services.csr.node_events import NodeEvents
from services.csr.requesters import Requesters
from services.csr.waiting import WaitingRequests

log = logging.getLogger(__name__)

PASS_SECONDS: Final = 1.0
TOGETHER_SECONDS: Final = 0.1  # what changes within it leads to one decision
_AT_ONCE: Final = 8
_TOLD_PER_PASS: Final = 20  # an outage must not become a storm of Events on the API server
_AGAIN_AT_MOST_SECONDS: Final = 60.0


class WatchWaiting:
    """Every replica does it; who writes second fails at the fence, which harms nobody."""

    def __init__(
        self,
        *,
        table: FlowTable,
        flow: WatchFlow,
        requesters: Requesters,
        waiting: WaitingRequests,
        events: NodeEvents,
        handle: Callable[[Message], Awaitable[Verdict]],
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        """`handle` decides about one request, one at a time, as for a delivery; `clock` is monotonic."""
        self._table = table
        self._flow = flow
        self._requesters = requesters
        self._waiting = waiting
        self._events = events
        self._handle = handle
        self._clock = clock
        self._now = now
        self._wanted: dict[str, None] = {}
        self._news = asyncio.Event()
        self._again: dict[str, float] = {}  # what nobody will deliver again, and when to look at it
        self._reasons: set[str] = set()

    def want(self, names: Iterable[str]) -> None:
        """Look at these soon."""
        self._wanted.update(dict.fromkeys(names))
        if self._wanted:
            self._news.set()

    def forget(self, name: str) -> None:
        """The request is gone, or decided."""
        self._wanted.pop(name, None)
        self._again.pop(name, None)

    def forget_all(self) -> None:
        """Everything known is void."""
        self._wanted.clear()
        self._again.clear()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._look_for_ever())
            tasks.create_task(self._pass_for_ever())

    async def _look_for_ever(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(TOGETHER_SECONDS)
            while self._wanted:
                name = next(iter(self._wanted))
                del self._wanted[name]
                await self._look(name)
            self._news.clear()

    async def _look(self, name: str) -> None:
        message = self._table.last(f"{ENRICHED_CSR}.{name}")
        if message is None or name not in self._requesters.pending:
            return
        verdict = await self._handle(message)
        if isinstance(verdict, Nak) and name in self._requesters.pending:
            self._again[name] = self._clock() + min(verdict.delay_seconds, _AGAIN_AT_MOST_SECONDS)
        else:
            self._again.pop(name, None)

    async def _pass_for_ever(self) -> None:
        while True:
            await asyncio.sleep(PASS_SECONDS)
            self.look_around()

    def look_around(self) -> None:
        """One pass: what is due is looked at, what waits for long is told, and all is counted."""
        at = self._clock()
        due = [name for name, when in self._again.items() if when <= at]
        for name in due:
            del self._again[name]
        self.want([*due, *self._waiting.due(at)])
        self._measure()
        if self._flow.problems():
            return  # what is known may be half of it: conclude nothing
        for waiting in islice(self._waiting.untold(at), _TOLD_PER_PASS):
            observed = self._event(f"{OBSERVED_CSR}.{waiting.name}")
            if isinstance(observed, CsrObserved) and observed.request.uid == waiting.uid:
                self._events.waits(observed.request, waiting.reason, waiting.message, waiting.rivals)

    def _measure(self) -> None:
        counts = Counter(waiting.reason for waiting in self._waiting.by_name.values())
        for reason in self._reasons | counts.keys():
            metrics.CSR_WAITING.labels(reason).set(counts[reason])
        self._reasons |= counts.keys()
        newest = list(self._requesters.all_newest())
        metrics.CSR_SUPERSEDED.set(len(self._requesters.pending) - len(newest))
        metrics.CSR_APPROVED_NOT_ISSUED.set(len(self._requesters.unissued))
        oldest = min((pending.place.created for pending in newest), default=None)
        age = (self._now() - oldest).total_seconds() if oldest else 0.0
        metrics.CSR_OLDEST_PENDING_AGE.set(max(0.0, age))  # the API server's clock may be ahead of ours

    def _event(self, subject: str) -> Event | None:
        message = self._table.last(subject)
        return message.event if message is not None and not isinstance(message.event, Unreadable) else None
