"""The taint of machines that are provably shut down: they said that they go, and have been silent since."""

from typing import Final

import msgspec

from libs.common.events import NodeEnriched, NodeUnreachable
from libs.common.machine import CONNECT_STEP
from libs.common.node import Node, Taint
from libs.common.patch import NodeChanges
from services.lifecycle.evidence import Word, is_not_ready, is_ready

SHUTDOWN: Final = Taint(key="node.cloudprovider.kubernetes.io/shutdown", effect="NoSchedule")
SHUTTING_DOWN: Final = "shutting down"  # MachineStatus.runtime.talos.dev
SILENT: Final = frozenset({"refused", "timeout"})  # other faults are answers, or troubles of our own


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the taint, and why."""

    changes: NodeChanges
    is_set: bool  # else it is removed
    reason: str

    @property
    def what(self) -> str:
        """One line, for `decided`."""
        return f"{'set' if self.is_set else 'removed'} taint {SHUTDOWN.key}:{SHUTDOWN.effect}"


def is_tainted(node: Node) -> bool:
    """Whether the Node says that its machine is shut down."""
    return any((taint.key, taint.effect) == (SHUTDOWN.key, SHUTDOWN.effect) for taint in node.spec.taints)


def shutdown_change(node: Node, word: Word | None) -> Change | None:
    """What is to be changed about the taint, None if nothing is."""
    if is_tainted(node):
        reason = _why_up(node, word)
        if not reason:
            return None
        changes = NodeChanges(remove_taints=(SHUTDOWN,))
        return Change(changes=changes, is_set=False, reason=reason)
    reason = why_shut_down(node, word)
    if not reason:
        return None
    return Change(changes=NodeChanges(set_taints=(SHUTDOWN,)), is_set=True, reason=reason)


def why_shut_down(node: Node, word: Word | None) -> str:
    """By what it is proven that the machine is shut down; "" if it is not."""
    if not isinstance(word, NodeUnreachable) or word.node.uid != node.uid:
        return ""
    last = word.last_known
    if last is None or last.stage != SHUTTING_DOWN or word.fault.kind not in SILENT:
        return ""
    if word.fault.step == CONNECT_STEP or not is_not_ready(node):
        return ""
    at = f"{last.looked_at:%Y-%m-%dT%H:%M:%SZ}"
    return f"its machine said at {at} that it is {SHUTTING_DOWN}, and has been silent since"


def _why_up(node: Node, word: Word | None) -> str:
    if is_ready(node):
        return "the Node is Ready"
    if isinstance(word, NodeEnriched) and word.node.uid == node.uid and word.facts.stage != SHUTTING_DOWN:
        return "its machine answers"
    return ""
