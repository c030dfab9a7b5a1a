"""Events on Nodes that get no pod CIDR, or have odd ones: one at a time, behind the claims."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.kube.event_recorder import EventRecorder, EventWriter
from libs.common.kube.events import ObjectEvent, node_reference

COMPONENT: Final = "talos-ccm-ipam"
NOT_AVAILABLE: Final = "CIDRNotAvailable"  # the reference's names
ASSIGNMENT_FAILED: Final = "CIDRAssignmentFailed"
OTHER_ALLOCATOR: Final = "CIDRFromAnotherAllocator"
CONFLICT: Final = "CIDRConflict"
ADDRESSES_IGNORED: Final = "NodeAddressesIgnored"
_MAX_REMEMBERED: Final = 50_000


class NodeEventRecorder:
    """Says each thing once, for as long as the last word about that Node of that kind was the same."""

    def __init__(
        self,
        kube: EventWriter,
        *,
        get_cluster_wide_reasons: Callable[[], tuple[str, ...]],
        is_foreign: Callable[[str], bool],
        now: Callable[[], datetime],
        observe_only: bool,
    ) -> None:
        """`everybodys`: messages about what keeps everybody waiting. That is told by /readyz, on no Node.

        `is_foreign`: whether the Node of that name is another's. There is nothing for us to tell on it.
        """
        self._get_cluster_wide_reasons = get_cluster_wide_reasons
        self._is_foreign = is_foreign
        self._queue = EventRecorder(kube, is_foreign=is_foreign)
        self._now = now
        self._observe_only = observe_only
        self._last_messages: dict[tuple[str, str], str] = {}  # uid and reason of the Event -> message

    def record(self, name: str, uid: str, reason: str, message: str) -> None:
        """On the Node, in the reference's words: "Node web-1 status is now: CIDRNotAvailable", and why."""
        if (
            self._observe_only
            or self._last_messages.get((uid, reason)) == message
            or message in self._get_cluster_wide_reasons()
        ):
            return
        if self._is_foreign(name):
            return
        self._last_messages[uid, reason] = message
        if len(self._last_messages) > _MAX_REMEMBERED:
            del self._last_messages[next(iter(self._last_messages))]
        event = ObjectEvent(
            regarding=node_reference(name, uid),
            reason=reason,
            message=f"Node {name} status is now: {reason}: {message}",
            type="Warning",
            component=COMPONENT,
            discriminator=message,
        )
        self._queue.record(event, self._now())

    def forget(self, uid: str) -> None:
        """The Node has its blocks: should it lack one again, it is news."""
        for reason in (NOT_AVAILABLE, ASSIGNMENT_FAILED):
            self._last_messages.pop((uid, reason), None)

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        await self._queue.run()

    async def flush(self) -> None:
        """The process ends: what is left is told, if that takes but a moment."""
        await self._queue.flush()
