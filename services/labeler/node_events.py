"""Events on Nodes. Those of what has been done are written one after the other, behind the writes."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

from libs.common.delivery import PermanentError, TemporaryError
from libs.common.kube_api.events import ObjectEvent, about_node
from libs.common.node import Node
from services.labeler.already_said import AlreadySaid
from services.labeler.plan import Notice, Plan

log = logging.getLogger(__name__)

COMPONENT: Final = "cloud-node-controller"  # the reference's: dashboards and people look for it
SYNCED: Final = Notice(reason="Synced", message="Node synced successfully", warning=False)

MOST_WAITING: Final = 10_000  # plans whose Events are still to be written; some kB each
LAST_WORDS_SECONDS: Final = 3.0  # at the end of the process, for what is still to be written


class EventWriter(Protocol):
    """Who writes Events; `kube_api.KubeApi` does it."""

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class NodeEvents:
    """Says things on Nodes, at once or afterwards.

    When a thousand Nodes join, a third of our requests are Events of what is done already. The API server is
    the one that everybody waits for then, so they go one at a time, and the next Node gets usable sooner.
    """

    def __init__(self, kube: EventWriter, said: AlreadySaid, *, now: Callable[[], datetime]) -> None:
        self._kube = kube
        self._said = said
        self._now = now
        self._waiting: deque[tuple[Node, Plan, datetime]] = deque(maxlen=MOST_WAITING)
        self._news = asyncio.Event()

    async def say(
        self, node: Node, notice: Notice, at: datetime | None = None, *, particular: str = ""
    ) -> bool:
        """One Event; whether it was told (by us or, in the same minute, by another replica).

        In one minute there is one Event of a reason, unless it is about something `particular`.
        """
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
            await self.tell_all()

    async def tell_all(self) -> None:
        """Write what is to be told so far; each notice once, for as long as it holds."""
        while self._waiting:
            told = self._waiting.popleft()
            try:
                await self._tell(*told)
            except BaseException:  # cancelled: it is among the last words
                self._waiting.appendleft(told)
                raise

    async def last_words(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self.tell_all()
        except TimeoutError:
            log.warning("Events go unsaid: the process ends", extra={"count": len(self._waiting)})

    async def _tell(self, node: Node, plan: Plan, at: datetime) -> None:
        if plan.outcome == "initialized":
            await self.say(node, SYNCED, at)
        for notice in self._said.unsaid(node.name, node.uid, plan.notices):
            if await self.say(node, notice, at, particular=notice.message):
                self._said.said(node.name, node.uid, notice)
