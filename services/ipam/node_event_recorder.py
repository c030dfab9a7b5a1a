"""Records Events on Nodes that get no pod CIDR or have invalid ones, one at a time after the claims."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.kube.event_recorder import EventRecorder, EventWriter
from libs.common.kube.events import ObjectEvent, node_reference

COMPONENT: Final = "talos-ccm-ipam"
NOT_AVAILABLE: Final = "CIDRNotAvailable"  # as the reference controller, like ASSIGNMENT_FAILED
ASSIGNMENT_FAILED: Final = "CIDRAssignmentFailed"
OTHER_ALLOCATOR: Final = "CIDRFromAnotherAllocator"
CONFLICT: Final = "CIDRConflict"
ADDRESSES_IGNORED: Final = "NodeAddressesIgnored"


class NodeEventRecorder:
    """Records each Event once, until the message for that Node and reason changes."""

    def __init__(
        self,
        kube: EventWriter,
        *,
        get_cluster_wide_reasons: Callable[[], tuple[str, ...]],
        is_foreign: Callable[[str], bool],
        now: Callable[[], datetime],
        observe_only: bool,
    ) -> None:
        """`get_cluster_wide_reasons`: messages for /readyz that concern all Nodes and become no Event.

        `is_foreign`: whether another controller manages the Node of that name; it gets no Event.
        """
        self._get_cluster_wide_reasons = get_cluster_wide_reasons
        self._queue = EventRecorder(kube, is_foreign=is_foreign)
        self._now = now
        self._observe_only = observe_only

    def record(self, name: str, uid: str, reason: str, message: str) -> None:
        """Record a Warning, as "Node web-1 status is now: CIDRNotAvailable: ..." (reference controller)."""
        if self._observe_only or message in self._get_cluster_wide_reasons():
            return
        event = ObjectEvent(
            regarding=node_reference(name, uid),
            reason=reason,
            message=f"Node {name} status is now: {reason}: {message}",
            type="Warning",
            component=COMPONENT,
            discriminator=message,
        )
        self._queue.record_once(event, self._now())

    def forget(self, uid: str) -> None:
        """Forget the messages about a Node that has blocks now, so that a new failure is recorded."""
        self._queue.forget(uid, NOT_AVAILABLE, ASSIGNMENT_FAILED)

    async def run(self) -> None:
        """Write the queued Events until cancelled."""
        await self._queue.run()

    async def flush(self) -> None:
        """Write the remaining Events at the end of the process, as far as that takes only a moment."""
        await self._queue.flush()
