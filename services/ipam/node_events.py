"""Events on Nodes that get no pod CIDR, or have odd ones: one at a time, behind the claims."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from libs.common.delivery import PermanentError, TemporaryError
from libs.common.kube_api.events import ObjectEvent, about_node
from services.ipam.claims_api import Kubernetes

log = logging.getLogger(__name__)

COMPONENT: Final = "talos-ccm-ipam"
NOT_AVAILABLE: Final = "CIDRNotAvailable"  # the reference's names
ASSIGNMENT_FAILED: Final = "CIDRAssignmentFailed"
OTHER_ALLOCATOR: Final = "CIDRFromAnotherAllocator"
CONFLICT: Final = "CIDRConflict"
MOST_WAITING: Final = 1000
LAST_WORDS_SECONDS: Final = 3.0  # at the end of the process, for what is still to be written
_MOST_KNOWN: Final = 50_000


class _Told(msgspec.Struct, frozen=True):
    event: ObjectEvent
    at: datetime


class NodeEvents:
    """Says each thing once, for as long as the last word about that Node of that kind was the same."""

    def __init__(
        self,
        kube: Kubernetes,
        *,
        everybodys: Callable[[], tuple[str, ...]],
        now: Callable[[], datetime],
        observe_only: bool,
    ) -> None:
        """`everybodys`: messages about what keeps everybody waiting. That is told by /readyz, on no Node."""
        self._everybodys = everybodys
        self._kube = kube
        self._now = now
        self._observe_only = observe_only
        self._waiting: deque[_Told] = deque()
        self._last: dict[tuple[str, str], str] = {}  # uid and reason of the Event -> message
        self._news = asyncio.Event()

    def tell(self, name: str, uid: str, reason: str, message: str) -> None:
        """On the Node, in the reference's words: "Node web-1 status is now: CIDRNotAvailable", and why."""
        if self._observe_only or self._last.get((uid, reason)) == message or message in self._everybodys():
            return
        self._last[uid, reason] = message
        if len(self._last) > _MOST_KNOWN:
            del self._last[next(iter(self._last))]
        if len(self._waiting) >= MOST_WAITING:
            log.warning("too many Events wait: one goes unsaid", extra={"node": name, "reason": reason})
            return
        event = ObjectEvent(
            about=about_node(name, uid),
            reason=reason,
            message=f"Node {name} status is now: {reason}: {message}",
            type="Warning",
            component=COMPONENT,
            particular=message,
        )
        self._waiting.append(_Told(event, self._now()))
        self._news.set()

    def served(self, uid: str) -> None:
        """The Node has its blocks: should it lack one again, it is news."""
        for reason in (NOT_AVAILABLE, ASSIGNMENT_FAILED):
            self._last.pop((uid, reason), None)

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self._tell_all()

    async def last_words(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._tell_all()
        except TimeoutError:
            log.warning("Events go unsaid: the process ends", extra={"count": len(self._waiting)})

    async def _tell_all(self) -> None:
        while self._waiting:
            told = self._waiting.popleft()
            try:
                await self._kube.create_event(told.event, now=told.at)
            except (TemporaryError, PermanentError) as error:
                # What it speaks of is in the log, in `decided` and in the metrics as well.
                log.warning(
                    "an Event could not be written",
                    extra={"node": told.event.about.name, "reason": told.event.reason, "error": str(error)},
                )
            except BaseException:  # cancelled: it is among the last words
                self._waiting.appendleft(told)
                raise
