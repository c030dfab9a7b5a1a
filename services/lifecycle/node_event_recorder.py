"""Events on the Nodes that are deleted, in the reference's words; and on those that would be."""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal

from libs.common.contract.node import Node
from libs.common.kube.event_recorder import EventRecorder, EventWriter
from libs.common.kube.events import ObjectEvent, node_reference

COMPONENT: Final = "talos-ccm-lifecycle"
DELETING: Final = "DeletingNode"  # the reference's names
FAILED: Final = "DeletingNodeFailed"
WOULD_DELETE: Final = "WouldDeleteNode"


class NodeEventRecorder:
    """Behind the work, one at a time."""

    def __init__(
        self,
        kube: EventWriter,
        *,
        is_foreign: Callable[[str], bool] = lambda name: False,
        now: Callable[[], datetime],
        observe_only: bool,
    ) -> None:
        """`is_foreign`: whether the Node of that name is there and another's: nothing is told on it."""
        self._queue = EventRecorder(kube, is_foreign=is_foreign)
        self._now = now
        self._observe_only = observe_only

    def record_deleting(self, node: Node, reason: str) -> None:
        """It is about to be deleted."""
        self._record(node, DELETING, "Normal", f"Deleting node {node.name}: {reason}")

    def record_failed(self, node: Node, error: str) -> None:
        """It was not, or nobody knows."""
        self._record(node, FAILED, "Warning", f"Error deleting node {node.name}: {error}")

    def record_would_delete(self, node: Node, reason: str) -> None:
        """A dry run: nothing is deleted."""
        self._record(node, WOULD_DELETE, "Normal", f"Dry run, would delete node {node.name}: {reason}")

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        await self._queue.run()

    async def flush(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
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
