"""Events on Nodes. Those of what has been done are written when no Node is written for a moment."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol
from weakref import WeakValueDictionary

from libs.common.delivery import PermanentError, TemporaryError
from libs.common.kube_api.events import ObjectEvent, about_node
from libs.common.node import Node
from services.labeler.already_said import AlreadySaid
from services.labeler.plan import Notice, Plan

log = logging.getLogger(__name__)

COMPONENT: Final = "cloud-node-controller"  # the reference's: dashboards and people look for it
SYNCED: Final = Notice(reason="Synced", message="Node synced successfully", warning=False)

MOST_WAITING: Final = 10_000  # plans whose Events are still to be written; some kB each
QUIET_SECONDS: Final = 0.3  # without a write of any Node: what joins has joined
AT_LATEST_SECONDS: Final = 10.0  # in a cluster that is never quiet
LAST_WORDS_SECONDS: Final = 5.0  # at the end of the process, for what is still to be written
_AT_ONCE: Final = 4  # while no Node is written; else one
_LAST_WORDS_AT_ONCE: Final = 16


class EventWriter(Protocol):
    """Who writes Events; `kube_api.KubeApi` does it."""

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class NodeEvents:
    """Says things on Nodes, at once or afterwards.

    When a thousand Nodes join, a third of our requests are Events of what is done already. The API server is
    the one that everybody waits for then, so they go when no Node has been written for a moment, and one at
    a time if that never comes: the next Node gets usable sooner.
    """

    def __init__(
        self,
        kube: EventWriter,
        said: AlreadySaid,
        *,
        now: Callable[[], datetime],
        quiet_seconds: Callable[[], float],
        is_foreign: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        """`quiet_seconds` tells for how long no write of a Node has been in flight or waited for its turn.

        `is_foreign`: whether the file has that Node be another's by now: nothing is said on it.
        """
        self._kube = kube
        self._said = said
        self._now = now
        self._quiet_seconds = quiet_seconds
        self._is_foreign = is_foreign
        self._waiting: deque[tuple[Node, Plan, datetime]] = deque(maxlen=MOST_WAITING)
        self._news = asyncio.Event()
        # Of one Node one plan at a time: what the first one says is not told by the second.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def say(
        self, node: Node, notice: Notice, at: datetime | None = None, *, particular: str = ""
    ) -> bool:
        """One Event; whether it was told (by us or, in the same minute, by another replica).

        In one minute there is one Event of a reason, unless it is about something `particular`.
        """
        if self._is_foreign(node):
            return False
        event = ObjectEvent(
            about=about_node(node.name, node.uid),
            reason=notice.reason,
            message=notice.message,
            type="Warning" if notice.warning else "Normal",
            component=COMPONENT,
            particular=particular,
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

    def tell(self, node: Node, plan: Plan) -> None:
        """Say afterwards what has been done by now; beyond MOST_WAITING the oldest goes unsaid."""
        if plan.outcome != "initialized" and not plan.notices:
            return
        if len(self._waiting) == MOST_WAITING:
            log.warning("too many Events wait: one goes unsaid", extra={"node": self._waiting[0][0].name})
        self._waiting.append((node, plan, self._now()))
        self._news.set()

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                quiet_in = QUIET_SECONDS - self._quiet_seconds()
                if quiet_in <= 0:
                    await self._tell_side_by_side()
                elif (due_in := self._due_in()) <= 0:
                    await self._tell_oldest()
                else:
                    await asyncio.sleep(min(quiet_in, due_in))

    async def tell_all(self) -> None:
        """Write what is to be told so far; each notice once, for as long as it holds."""
        while self._waiting:
            await self._tell_oldest()

    async def last_words(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await asyncio.gather(*(self.tell_all() for _ in range(_LAST_WORDS_AT_ONCE)))
        except TimeoutError:
            log.warning("Events go unsaid: the process ends", extra={"count": len(self._waiting)})

    def _due_in(self) -> float:
        """In how many seconds the oldest is told, whatever is written."""
        _, _, at = self._waiting[0]
        waited = (self._now() - at).total_seconds()
        return AT_LATEST_SECONDS - waited if waited >= 0.0 else 0.0  # the clock was set back

    async def _tell_side_by_side(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_AT_ONCE, len(self._waiting))):
                tasks.create_task(self._tell_oldest())

    async def _tell_oldest(self) -> None:
        if not self._waiting:
            return
        told = self._waiting.popleft()
        try:
            async with self._turns.setdefault(told[0].name, asyncio.Lock()):
                await self._tell(*told)
        except BaseException:  # cancelled: it is among the last words
            self._waiting.appendleft(told)
            raise

    async def _tell(self, node: Node, plan: Plan, at: datetime) -> None:
        if plan.outcome == "initialized":
            await self.say(node, SYNCED, at)
        for notice in self._said.unsaid(node.name, node.uid, plan.notices):
            if await self.say(node, notice, at, particular=notice.message):
                self._said.said(node.name, node.uid, notice)
