"""Events on the Nodes whose requests are denied, or wait for long: one at a time, behind the decisions."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.kube.event_recorder import EventRecorder, EventWriter
from libs.common.kube.events import ObjectEvent, node_reference

COMPONENT: Final = "talos-ccm-csr"
MAX_RIVALS: Final = 4  # other Nodes on which one wait is told: some addresses are on every machine
_MAX_RECORDED: Final = 50_000


class NodeEventRecorder:
    """Says each thing once, for as long as the last word about that Node of that kind was the same."""

    def __init__(
        self,
        kube: EventWriter,
        get_node: Callable[[str], Node | None],
        *,
        is_foreign: Callable[[str], bool] = lambda name: False,
        now: Callable[[], datetime],
        observe_only: bool,
    ) -> None:
        """`node` is the Node of that name, None if there is none: then nobody is told.

        `is_foreign`: whether it is there and another's: nothing is told on it.
        """
        self._is_foreign = is_foreign
        self._queue = EventRecorder(kube, is_foreign=is_foreign)
        self._get_node = get_node
        self._now = now
        self._observe_only = observe_only
        self._recorded: dict[tuple[str, str], str] = {}  # uid and reason of the Event -> why

    def record_denied(self, request: SigningRequest, cause: str, message: str) -> None:
        """On the Node whose kubelet asked; `why` is what makes it another thing to be told of."""
        self._record(request.node_name, "CSRDenied", cause, f"{request.name}: {message}", self._now())

    def record_waiting(
        self, request: SigningRequest, cause: str, message: str, other_nodes: tuple[str, ...]
    ) -> None:
        """On the Node whose kubelet asked, and on the first few of those that claim the same.

        Dated when the request was filed: every replica gives the Event one name, and it is written once.
        """
        filed = request.metadata.creation_timestamp or self._now()
        rivals = [node for node in other_nodes if node != request.node_name]
        for node in (request.node_name, *rivals[:MAX_RIVALS]):
            text = f"{request.name} of {request.node_name} waits: {message}"
            self._record(node, "CSRWaiting", f"{request.node_name}: {cause}", text, filed)

    def forget_reasons(self, request: SigningRequest) -> None:
        """What kept this Node's requests from it is no more: should it come again, it is news."""
        self._forget(request.node_name)

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        await self._queue.run()

    async def flush(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
        await self._queue.flush()

    def _record(self, name: str, reason: str, cause: str, message: str, at: datetime) -> None:
        node = self._get_node(name)
        if node is None or self._is_foreign(name) or self._observe_only:
            return
        if self._recorded.get((node.uid, reason)) == cause:
            return
        self._recorded[node.uid, reason] = cause
        if len(self._recorded) > _MAX_RECORDED:
            del self._recorded[next(iter(self._recorded))]
        event = ObjectEvent(
            regarding=node_reference(node.name, node.uid),
            reason=reason,
            message=message,
            type="Warning",
            component=COMPONENT,
            discriminator=cause,
        )
        self._queue.record(event, at)

    def _forget(self, name: str) -> None:
        node = self._get_node(name)
        for reason in ("CSRDenied", "CSRWaiting"):
            self._recorded.pop((node.uid if node else "", reason), None)
