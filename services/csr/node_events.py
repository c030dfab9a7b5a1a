"""Events on Nodes whose requests are denied or wait for long."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import node_reference
from services.csr.core.flow_state import WaitingRequest

COMPONENT: Final = "talos-ccm-csr"
MAX_RIVALS: Final = 4  # other Nodes that get an Event for one wait: some addresses are on every machine
DENIED: Final = "CSRDenied"
WAITING: Final = "CSRWaiting"


@dataclass(eq=False)
class NodeEvents:
    """Records each Event once, until its cause for that Node and reason changes."""

    recorder: EventRecorder
    get_node: Callable[[str], Node | None]  # None if there is none; then no Event is recorded

    def record_denied(self, request: SigningRequest, cause: str, message: str) -> None:
        """Record a denial on the requesting Node; a different `cause` makes it a new Event."""
        if (node := self.get_node(request.node_name)) is not None:
            about = node_reference(node.name, node.uid)
            self.recorder.record_once(about, DENIED, f"{request.name}: {message}", cause=cause)

    def record_waiting(self, request: SigningRequest, waiting: WaitingRequest) -> None:
        """Record a wait on the requesting Node and on the first few Nodes with the same claim.

        The Event's time is the creation time of the request: all replicas then use one Event name, and only
        one Event is created.
        """
        rivals = [node for node in waiting.rivals if node != request.node_name]
        for node in map(self.get_node, (request.node_name, *rivals[:MAX_RIVALS])):
            if node is not None:
                self.recorder.record_once(
                    node_reference(node.name, node.uid),
                    WAITING,
                    f"{request.name} of {request.node_name} waits: {waiting.message}",
                    cause=f"{request.node_name}: {waiting.reason}",
                    at=request.metadata.creation_timestamp,
                )

    def forget_reasons(self, node_name: str) -> None:
        """Forget the recorded causes of an approved Node, so that a returning cause is recorded again."""
        if (node := self.get_node(node_name)) is not None:
            self.recorder.forget(node.uid, DENIED, WAITING)
