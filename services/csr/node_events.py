"""Events on the Nodes whose requests are denied, or wait for long: one at a time, behind the decisions."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.kube_api.event_queue import EventQueue, EventWriter
from libs.common.kube_api.events import ObjectEvent, about_node
from libs.common.node import Node
from libs.common.signing_request import SigningRequest

COMPONENT: Final = "talos-ccm-csr"
MOST_RIVALS: Final = 4  # other Nodes on which one wait is told: some addresses are on every machine
_MOST_KNOWN: Final = 50_000


class NodeEvents:
    """Says each thing once, for as long as the last word about that Node of that kind was the same."""

    def __init__(
        self,
        kube: EventWriter,
        node: Callable[[str], Node | None],
        *,
        is_foreign: Callable[[str], bool] = lambda name: False,
        now: Callable[[], datetime],
        observe_only: bool,
    ) -> None:
        """`node` is the Node of that name, None if there is none: then nobody is told.

        `is_foreign`: whether it is there and another's: nothing is told on it.
        """
        self._is_foreign = is_foreign
        self._queue = EventQueue(kube, is_foreign=is_foreign)
        self._node = node
        self._now = now
        self._observe_only = observe_only
        self._last: dict[tuple[str, str], str] = {}  # uid and reason of the Event -> why

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
        await self._queue.run()

    async def last_words(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
        await self._queue.last_words()

    def _tell(self, name: str, reason: str, why: str, message: str, at: datetime) -> None:
        node = self._node(name)
        if node is None or self._is_foreign(name) or self._observe_only:
            return
        if self._last.get((node.uid, reason)) == why:
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
        self._queue.put(event, at)

    def _forget(self, name: str) -> None:
        node = self._node(name)
        for reason in ("CSRDenied", "CSRWaiting"):
            self._last.pop((node.uid if node else "", reason), None)
