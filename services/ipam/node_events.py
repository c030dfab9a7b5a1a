"""Events on Nodes that get no pod CIDR or have invalid ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import node_reference

COMPONENT: Final = "talos-ccm-ipam"
NOT_AVAILABLE: Final = "CIDRNotAvailable"  # as the reference controller, like ASSIGNMENT_FAILED
ASSIGNMENT_FAILED: Final = "CIDRAssignmentFailed"
OTHER_ALLOCATOR: Final = "CIDRFromAnotherAllocator"
CONFLICT: Final = "CIDRConflict"
ADDRESSES_IGNORED: Final = "NodeAddressesIgnored"


@dataclass(eq=False)
class NodeEvents:
    """Records each Event once, until the message for that Node and reason changes."""

    recorder: EventRecorder
    get_cluster_wide_reasons: Callable[[], tuple[str, ...]]  # for /readyz: they become no Event

    def record(self, name: str, uid: str, reason: str, message: str) -> None:
        """Record a Warning, as "Node web-1 status is now: CIDRNotAvailable: ..." (reference controller)."""
        if message not in self.get_cluster_wide_reasons():
            text = f"Node {name} status is now: {reason}: {message}"
            self.recorder.record_once(node_reference(name, uid), reason, text, cause=message)

    def forget(self, uid: str) -> None:
        """Forget the messages about a Node that has blocks now, so that a new failure is recorded."""
        self.recorder.forget(uid, NOT_AVAILABLE, ASSIGNMENT_FAILED)
