"""Events on Nodes. Those of what has been done are written when no Node is written for a moment."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol
from weakref import WeakValueDictionary

from libs.common.bus.delivery import PermanentError, TemporaryError
from libs.common.contract.node import Node
from libs.common.kube.events import ObjectEvent, node_reference
from services.labeler.event_deduplicator import EventDeduplicator
from services.labeler.plan import Notice, Plan

log = logging.getLogger(__name__)

COMPONENT: Final = "cloud-node-controller"  # the reference's: dashboards and people look for it
SYNCED: Final = Notice(reason="Synced", message="Node synced successfully", is_warning=False)

MAX_QUEUED: Final = 10_000  # plans whose Events are still to be written; some kB each
IDLE_SECONDS: Final = 0.3  # without a write of any Node: what joins has joined
MAX_DELAY_SECONDS: Final = 10.0  # in a cluster that is never quiet
FLUSH_SECONDS: Final = 5.0  # at the end of the process, for what is still to be written
_MAX_CONCURRENT_WRITES: Final = 4  # while no Node is written; else one
_MAX_CONCURRENT_FLUSH_WRITES: Final = 16


class EventWriter(Protocol):
    """Who writes Events; `kube_api.KubeApi` does it."""

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class NodeEventRecorder:
    """Says things on Nodes, at once or afterwards.

    When a thousand Nodes join, a third of our requests are Events of what is done already. The API server is
    the one that everybody waits for then, so they go when no Node has been written for a moment, and one at
    a time if that never comes: the next Node gets usable sooner.
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
        """`idle_seconds` tells for how long no write of a Node has been in flight or waited for its turn.

        `is_foreign`: whether the file has that Node be another's by now: nothing is said on it.
        """
        self._kube = kube
        self._deduplicator = deduplicator
        self._now = now
        self._idle_seconds = idle_seconds
        self._is_foreign = is_foreign
        self._queue: deque[tuple[Node, Plan, datetime]] = deque(maxlen=MAX_QUEUED)
        self._wakeup = asyncio.Event()
        # Of one Node one plan at a time: what the first one says is not told by the second.
        self._node_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def record_now(
        self, node: Node, notice: Notice, at: datetime | None = None, *, particular: str = ""
    ) -> bool:
        """One Event; whether it was told (by us or, in the same minute, by another replica).

        In one minute there is one Event of a reason, unless it is about something `particular`.
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
            # What it speaks of has been done: an Event must not make a finished message fail.
            log.warning(
                "an Event could not be written",
                extra={"node": node.name, "reason": notice.reason, "error": str(error)},
            )
            return False
        return True

    def enqueue(self, node: Node, plan: Plan) -> None:
        """Say afterwards what has been done by now; beyond MAX_QUEUED the oldest goes unsaid."""
        if plan.outcome != "initialized" and not plan.notices:
            return
        if len(self._queue) == MAX_QUEUED:
            log.warning("too many Events wait: one goes unsaid", extra={"node": self._queue[0][0].name})
        self._queue.append((node, plan, self._now()))
        self._wakeup.set()

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._queue:
                quiet_in = IDLE_SECONDS - self._idle_seconds()
                if quiet_in <= 0:
                    await self._write_concurrently()
                elif (due_in := self._seconds_until_due()) <= 0:
                    await self._write_oldest()
                else:
                    await asyncio.sleep(min(quiet_in, due_in))

    async def write_all(self) -> None:
        """Write what is to be told so far; each notice once, for as long as it holds."""
        while self._queue:
            await self._write_oldest()

    async def flush(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*(self.write_all() for _ in range(_MAX_CONCURRENT_FLUSH_WRITES)))
        except TimeoutError:
            log.warning("Events go unsaid: the process ends", extra={"count": len(self._queue)})

    def _seconds_until_due(self) -> float:
        """In how many seconds the oldest is told, whatever is written."""
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
        told = self._queue.popleft()
        try:
            async with self._node_locks.setdefault(told[0].name, asyncio.Lock()):
                await self._write(*told)
        except BaseException:  # cancelled: it is among the last words
            self._queue.appendleft(told)
            raise

    async def _write(self, node: Node, plan: Plan, at: datetime) -> None:
        if plan.outcome == "initialized":
            await self.record_now(node, SYNCED, at)
        for notice in self._deduplicator.select_new_notices(node.name, node.uid, plan.notices):
            if await self.record_now(node, notice, at, particular=notice.message):
                self._deduplicator.record_notice(node.name, node.uid, notice)
