"""Writes Kubernetes Events on Nodes, after the other writes where possible."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final
from weakref import WeakValueDictionary

from libs.common.bus.delivery import PermanentError, TemporaryError
from libs.common.contract.node import Node
from libs.common.kube.event_recorder import EventWriter
from libs.common.kube.events import ObjectEvent, node_reference
from services.labeler.event_deduplicator import EventDeduplicator
from services.labeler.plan import Notice, Plan

log = logging.getLogger(__name__)

COMPONENT: Final = "cloud-node-controller"  # the reference's name: dashboards and operators search for it
SYNCED: Final = Notice(reason="Synced", message="Node synced successfully", is_warning=False)

MAX_QUEUED: Final = 10_000  # plans with Events to write; some kB each
IDLE_SECONDS: Final = 0.3  # without a write of any Node: the joining Nodes are done
MAX_DELAY_SECONDS: Final = 10.0  # in a cluster whose Nodes are written all the time
FLUSH_SECONDS: Final = 5.0  # for the queued Events when the process ends
_MAX_CONCURRENT_WRITES: Final = 4  # while no Node is written; otherwise one
_MAX_CONCURRENT_FLUSH_WRITES: Final = 16


class NodeEventRecorder:
    """Writes Events on Nodes, at once or from a queue.

    When a thousand Nodes join, a third of the labeler's requests are Events about completed writes, and the
    API server is the bottleneck. The recorder therefore writes queued Events when no Node was written for
    IDLE_SECONDS. If that never happens, it writes each after MAX_DELAY_SECONDS, one at a time, so the next
    Node is usable sooner.
    """

    def __init__(
        self,
        kube: EventWriter,
        deduplicator: EventDeduplicator,
        *,
        now: Callable[[], datetime],
        idle_seconds: Callable[[], float],
        is_foreign: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        """`idle_seconds` returns for how long no write of a Node has been in flight or waiting.

        `is_foreign` returns whether --cloud-config now excludes the Node; it then gets no Event.
        """
        self._kube = kube
        self._deduplicator = deduplicator
        self._now = now
        self._idle_seconds = idle_seconds
        self._is_foreign = is_foreign
        self._queue: deque[tuple[Node, Plan, datetime]] = deque(maxlen=MAX_QUEUED)
        self._wakeup = asyncio.Event()
        # One plan at a time per Node, so that the second plan does not repeat the notices of the first.
        self._node_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def record_now(
        self, node: Node, notice: Notice, at: datetime | None = None, *, particular: str = ""
    ) -> bool:
        """Write one Event; return whether it exists, from this replica or, in the same minute, another one.

        A Node gets one Event per reason and minute, unless `particular` distinguishes them.
        """
        if self._is_foreign(node):
            return False
        event = ObjectEvent(
            regarding=node_reference(node.name, node.uid),
            reason=notice.reason,
            message=notice.message,
            type="Warning" if notice.is_warning else "Normal",
            component=COMPONENT,
            discriminator=particular,
        )
        try:
            await self._kube.create_event(event, now=at or self._now())
        except (TemporaryError, PermanentError) as error:
            # The Event reports a completed write, so its failure must not fail the message.
            log.warning(
                "Event write failed",
                extra={"node": node.name, "reason": notice.reason, "error": str(error)},
            )
            return False
        return True

    def enqueue(self, node: Node, plan: Plan) -> None:
        """Queue the Events of an applied plan; beyond MAX_QUEUED plans, drop the oldest."""
        if plan.outcome != "initialized" and not plan.notices:
            return
        if len(self._queue) == MAX_QUEUED:
            log.warning("Event dropped: queue full", extra={"node": self._queue[0][0].name})
        self._queue.append((node, plan, self._now()))
        self._wakeup.set()

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._queue:
                idle_in = IDLE_SECONDS - self._idle_seconds()
                if idle_in <= 0:
                    await self._write_concurrently()
                elif (due_in := self._seconds_until_due()) <= 0:
                    await self._write_oldest()
                else:
                    await asyncio.sleep(min(idle_in, due_in))

    async def write_all(self) -> None:
        """Write all queued Events; each notice only once while it holds."""
        while self._queue:
            await self._write_oldest()

    async def flush(self) -> None:
        """Write the queued Events when the process ends, for at most FLUSH_SECONDS."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*(self.write_all() for _ in range(_MAX_CONCURRENT_FLUSH_WRITES)))
        except TimeoutError:
            log.warning("Events dropped: the process ends", extra={"count": len(self._queue)})

    def _seconds_until_due(self) -> float:
        """Return the seconds until the oldest plan is due even while Nodes are written."""
        _, _, at = self._queue[0]
        waited = (self._now() - at).total_seconds()
        return MAX_DELAY_SECONDS - waited if waited >= 0.0 else 0.0  # the clock was set back

    async def _write_concurrently(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_MAX_CONCURRENT_WRITES, len(self._queue))):
                tasks.create_task(self._write_oldest())

    async def _write_oldest(self) -> None:
        if not self._queue:
            return
        oldest = self._queue.popleft()
        try:
            async with self._node_locks.setdefault(oldest[0].name, asyncio.Lock()):
                await self._write(*oldest)
        except BaseException:  # cancelled: `flush` writes it
            self._queue.appendleft(oldest)
            raise

    async def _write(self, node: Node, plan: Plan, at: datetime) -> None:
        if plan.outcome == "initialized":
            await self.record_now(node, SYNCED, at)
        for notice in self._deduplicator.select_new_notices(node.name, node.uid, plan.notices):
            if await self.record_now(node, notice, at, particular=notice.message):
                self._deduplicator.record_notice(node.name, node.uid, notice)
