"""The taint of machines that are provably shut down: they said that they go, and have been silent since."""

from typing import Final

import msgspec

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import CONNECT_STEP
from libs.common.contract.node import Node, Taint
from libs.common.contract.node_patch import NodeChanges
from services.lifecycle.evidence import MachineReport, is_not_ready, is_ready

SHUTDOWN_TAINT: Final = Taint(key="node.cloudprovider.kubernetes.io/shutdown", effect="NoSchedule")
SHUTTING_DOWN_STAGE: Final = "shutting down"  # MachineStatus.runtime.talos.dev
SILENT_FAULTS: Final = frozenset({"refused", "timeout"})  # other faults are answers, or troubles of our own


class ShutdownTaintChange(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the taint, and why."""

    changes: NodeChanges
    is_set: bool  # else it is removed
    reason: str

    @property
    def summary(self) -> str:
        """One line, for `decided`."""
        return f"{'set' if self.is_set else 'removed'} taint {SHUTDOWN_TAINT.key}:{SHUTDOWN_TAINT.effect}"


def has_shutdown_taint(node: Node) -> bool:
    """Whether the Node says that its machine is shut down."""
    return any(
        (taint.key, taint.effect) == (SHUTDOWN_TAINT.key, SHUTDOWN_TAINT.effect) for taint in node.spec.taints
    )


def plan_shutdown_taint(node: Node, report: MachineReport | None) -> ShutdownTaintChange | None:
    """What is to be changed about the taint, None if nothing is."""
    if has_shutdown_taint(node):
        reason = _why_running(node, report)
        if not reason:
            return None
        changes = NodeChanges(remove_taints=(SHUTDOWN_TAINT,))
        return ShutdownTaintChange(changes=changes, is_set=False, reason=reason)
    reason = why_shut_down(node, report)
    if not reason:
        return None
    return ShutdownTaintChange(changes=NodeChanges(set_taints=(SHUTDOWN_TAINT,)), is_set=True, reason=reason)


def why_shut_down(node: Node, report: MachineReport | None) -> str:
    """By what it is proven that the machine is shut down; "" if it is not."""
    if not isinstance(report, NodeUnreachable) or report.node.uid != node.uid:
        return ""
    last = report.last_known
    if last is None or last.stage != SHUTTING_DOWN_STAGE or report.fault.kind not in SILENT_FAULTS:
        return ""
    if report.fault.step == CONNECT_STEP or not is_not_ready(node):
        return ""
    at = f"{last.queried_at:%Y-%m-%dT%H:%M:%SZ}"
    return f"its machine said at {at} that it is {SHUTTING_DOWN_STAGE}, and has been silent since"


def _why_running(node: Node, report: MachineReport | None) -> str:
    if is_ready(node):
        return "the Node is Ready"
    if (
        isinstance(report, NodeEnriched)
        and report.node.uid == node.uid
        and report.facts.stage != SHUTTING_DOWN_STAGE
    ):
        return "its machine answers"
    return ""
