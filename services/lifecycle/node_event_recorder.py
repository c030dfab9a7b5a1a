"""Records Events about deletions on Nodes, with the reasons and texts of the reference controller."""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal

from libs.common.contract.node import Node
from libs.common.kube.event_recorder import EventRecorder, EventWriter
from libs.common.kube.events import ObjectEvent, node_reference

COMPONENT: Final = "talos-ccm-lifecycle"
DELETING: Final = "DeletingNode"  # as the reference controller, like FAILED
FAILED: Final = "DeletingNodeFailed"
WOULD_DELETE: Final = "WouldDeleteNode"


class NodeEventRecorder:
    """Queues Events and writes them one at a time, after the deletions."""

    def __init__(
        self,
        kube: EventWriter,
        *,
        is_foreign: Callable[[str], bool] = lambda name: False,
        now: Callable[[], datetime],
        observe_only: bool,
    ) -> None:
        """`is_foreign`: whether the Node exists and another controller manages it; it gets no Event."""
        self._queue = EventRecorder(kube, is_foreign=is_foreign)
        self._now = now
        self._observe_only = observe_only

    def record_deleting(self, node: Node, reason: str) -> None:
        """Record that lifecycle is about to delete the Node."""
        self._record(node, DELETING, "Normal", f"Deleting node {node.name}: {reason}")

    def record_failed(self, node: Node, error: str) -> None:
        """Record that the deletion failed, or that its result is unknown."""
        self._record(node, FAILED, "Warning", f"Error deleting node {node.name}: {error}")

    def record_would_delete(self, node: Node, reason: str) -> None:
        """Record that a dry run would delete the Node."""
        self._record(node, WOULD_DELETE, "Normal", f"Dry run, would delete node {node.name}: {reason}")

    async def run(self) -> None:
        """Write the queued Events until cancelled."""
        await self._queue.run()

    async def flush(self) -> None:
        """Write the remaining Events at the end of the process, as far as that takes only a moment."""
        await self._queue.flush()

    def _record(self, node: Node, reason: str, kind: Literal["Normal", "Warning"], message: str) -> None:
        if self._observe_only:
            return
        event = ObjectEvent(
            regarding=node_reference(node.name, node.uid),
            reason=reason,
            message=message,
            type=kind,
            component=COMPONENT,
            discriminator=message,
        )
        self._queue.record(event, self._now())
