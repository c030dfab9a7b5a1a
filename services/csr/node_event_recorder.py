"""Records Events on Nodes whose requests are denied or wait for long, one at a time after the decisions."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.kube.event_recorder import EventRecorder, EventWriter
from libs.common.kube.events import ObjectEvent, node_reference

COMPONENT: Final = "talos-ccm-csr"
MAX_RIVALS: Final = 4  # other Nodes that get an Event for one wait: some addresses are on every machine
DENIED: Final = "CSRDenied"
WAITING: Final = "CSRWaiting"


class NodeEventRecorder:
    """Records each Event once, until its cause for that Node and reason changes."""

    def __init__(
        self,
        kube: EventWriter,
        get_node: Callable[[str], Node | None],
        *,
        is_foreign: Callable[[str], bool] = lambda name: False,
        now: Callable[[], datetime],
        observe_only: bool,
    ) -> None:
        """`get_node` returns the Node of that name; None if there is none, then no Event is recorded.

        `is_foreign`: whether the Node exists and another controller manages it; such a Node gets no Event.
        """
        self._queue = EventRecorder(kube, is_foreign=is_foreign)
        self._get_node = get_node
        self._now = now
        self._observe_only = observe_only

    def record_denied(self, request: SigningRequest, cause: str, message: str) -> None:
        """Record a denial on the requesting Node; a different `cause` makes it a new Event."""
        self._record(request.node_name, DENIED, cause, f"{request.name}: {message}", self._now())

    def record_waiting(
        self, request: SigningRequest, cause: str, message: str, other_nodes: tuple[str, ...]
    ) -> None:
        """Record a wait on the requesting Node and on the first few Nodes with the same claim.

        The Event's time is the creation time of the request: all replicas then use one Event name, and only
        one Event is created.
        """
        filed = request.metadata.creation_timestamp or self._now()
        rivals = [node for node in other_nodes if node != request.node_name]
        for node in (request.node_name, *rivals[:MAX_RIVALS]):
            text = f"{request.name} of {request.node_name} waits: {message}"
            self._record(node, WAITING, f"{request.node_name}: {cause}", text, filed)

    def forget_reasons(self, request: SigningRequest) -> None:
        """Forget the requesting Node's recorded causes, so that a returning cause is recorded again."""
        if (node := self._get_node(request.node_name)) is not None:
            self._queue.forget(node.uid, DENIED, WAITING)

    async def run(self) -> None:
        """Write the queued Events until cancelled."""
        await self._queue.run()

    async def flush(self) -> None:
        """Write the remaining Events at the end of the process, as far as that takes only a moment."""
        await self._queue.flush()

    def _record(self, name: str, reason: str, cause: str, message: str, at: datetime) -> None:
        node = self._get_node(name)
        if node is None or self._observe_only:
            return
        event = ObjectEvent(
            regarding=node_reference(node.name, node.uid),
            reason=reason,
            message=message,
            type="Warning",
            component=COMPONENT,
            discriminator=cause,
        )
        self._queue.record_once(event, at)
