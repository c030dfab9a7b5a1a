"""Events on the Nodes whose requests are denied, or wait for long: one at a time, behind the decisions."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

import msgspec

from libs.common.delivery import PermanentError, TemporaryError, backoff_seconds
from libs.common.kube_api.events import ObjectEvent, about_node
from libs.common.node import Node
from libs.common.signing_request import SigningRequest

log = logging.getLogger(__name__)

COMPONENT: Final = "talos-ccm-csr"
MOST_WAITING: Final = 10_000
LAST_WORDS_SECONDS: Final = 3.0  # at the end of the process, for what is still to be written
MOST_RIVALS: Final = 4  # other Nodes on which one wait is told: some addresses are on every machine
WORTH_TELLING_SECONDS: Final = 600.0  # that an Event is tried, while the API server does not take it
_AGAIN_AT_MOST_SECONDS: Final = 8.0
_MOST_KNOWN: Final = 50_000


class EventWriter(Protocol):
    """Who writes Events; `kube_api.KubeApi` does it."""

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class _Told(msgspec.Struct, frozen=True):
    event: ObjectEvent
    at: datetime
    until: float  # when it is given up, on the loop's clock


class NodeEvents:
    """Says each thing once, for as long as the last word about that Node of that kind was the same."""

    def __init__(
        self,
        kube: EventWriter,
        node: Callable[[str], Node | None],
        *,
        now: Callable[[], datetime],
        observe_only: bool,
    ) -> None:
        """`node` is the Node of that name, None if there is none: then nobody is told."""
        self._kube = kube
        self._node = node
        self._now = now
        self._observe_only = observe_only
        self._waiting: deque[_Told] = deque(maxlen=MOST_WAITING)
        self._last: dict[tuple[str, str], str] = {}  # uid and reason of the Event -> why
        self._news = asyncio.Event()

    def denied(self, request: SigningRequest, why: str, message: str) -> None:
        """On the Node whose kubelet asked; `why` is what makes it another thing to be told of."""
        self._tell(request.node_name, "CSRDenied", why, f"{request.name}: {message}", self._now())

    def waits(self, request: SigningRequest, why: str, message: str, nodes: tuple[str, ...]) -> None:
        """On the Node whose kubelet asked, and on the first few of those that claim the same.

        Dated when the request was filed: every replica gives the Event one name, and it is written once.
        """
        filed = request.metadata.creation_timestamp or self._now()
        rivals = [node for node in nodes if node != request.node_name]
        for node in (request.node_name, *rivals[:MOST_RIVALS]):
            text = f"{request.name} of {request.node_name} waits: {message}"
            self._tell(node, "CSRWaiting", f"{request.node_name}: {why}", text, filed)

    def approved(self, request: SigningRequest) -> None:
        """What kept this Node's requests from it is no more: should it come again, it is news."""
        self._forget(request.node_name)

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            failures = 0
            while self._waiting:
                failures = 0 if await self._tell_next() else failures + 1
                if failures:
                    await asyncio.sleep(min(_AGAIN_AT_MOST_SECONDS, backoff_seconds(failures, 0.0)))

    async def last_words(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                for _ in range(len(self._waiting)):
                    await self._tell_next()
        except TimeoutError:
            log.warning("Events go unsaid: the process ends", extra={"count": len(self._waiting)})

    def _tell(self, name: str, reason: str, why: str, message: str, at: datetime) -> None:
        node = self._node(name)
        if node is None or self._observe_only or self._last.get((node.uid, reason)) == why:
            return
        self._last[node.uid, reason] = why
        if len(self._last) > _MOST_KNOWN:
            del self._last[next(iter(self._last))]
        event = ObjectEvent(
            about=about_node(node.name, node.uid),
            reason=reason,
            message=message,
            type="Warning",
            component=COMPONENT,
            particular=why,
        )
        if len(self._waiting) == MOST_WAITING:
            about = self._waiting[0].event.about.name
            log.warning("too many Events wait: one goes unsaid", extra={"node": about})
        until = asyncio.get_running_loop().time() + WORTH_TELLING_SECONDS
        self._waiting.append(_Told(event, at, until))
        self._news.set()

    def _forget(self, name: str) -> None:
        node = self._node(name)
        for reason in ("CSRDenied", "CSRWaiting"):
            self._last.pop((node.uid if node else "", reason), None)

    async def _tell_next(self) -> bool:
        """Whether there is nothing more to do about it; else it is told after the others."""
        told = self._waiting.popleft()
        try:
            await self._kube.create_event(told.event, now=told.at)
        except (TemporaryError, PermanentError) as error:
            is_over = isinstance(error, PermanentError) or asyncio.get_running_loop().time() >= told.until
            if not is_over:
                self._waiting.append(told)
            self._warn(told, error, is_over=is_over)
            return is_over
        except BaseException:  # cancelled: it is among the last words
            self._waiting.appendleft(told)
            raise
        return True

    def _warn(self, told: _Told, error: Exception, *, is_over: bool) -> None:
        """What it speaks of has been done, and is told on the request itself."""
        about = {"node": told.event.about.name, "reason": told.event.reason, "error": str(error)}
        if is_over:
            log.warning("an Event could not be written", extra=about)
        else:
            log.info("an Event could not be written yet", extra=about)
