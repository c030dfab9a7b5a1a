"""Plans the shutdown taint of machines that reported their shutdown and have been silent since."""

from typing import Final

import msgspec

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import CONNECT_STEP
from libs.common.contract.node import Node, Taint
from libs.common.contract.node_patch import NodeChanges
from services.lifecycle.core.evidence import MachineReport, is_not_ready, is_ready

SHUTDOWN_TAINT: Final = Taint(key="node.cloudprovider.kubernetes.io/shutdown", effect="NoSchedule")
SHUTTING_DOWN_STAGE: Final = "shutting down"  # MachineStatus.runtime.talos.dev
# other faults are answers, or failures on the side of metadata
SILENT_FAULTS: Final = frozenset({"refused", "timeout"})


class ShutdownTaintChange(msgspec.Struct, frozen=True, kw_only=True):
    """A planned change of the taint, with the reason."""

    changes: NodeChanges
    is_set: bool  # False: it is removed
    reason: str

    @property
    def summary(self) -> str:
        """One line, for the decision."""
        return f"{'set' if self.is_set else 'removed'} taint {SHUTDOWN_TAINT.key}:{SHUTDOWN_TAINT.effect}"


def has_shutdown_taint(node: Node) -> bool:
    """Whether the Node has the shutdown taint."""
    return any(
        (taint.key, taint.effect) == (SHUTDOWN_TAINT.key, SHUTDOWN_TAINT.effect) for taint in node.spec.taints
    )


def plan_shutdown_taint(node: Node, report: MachineReport | None) -> ShutdownTaintChange | None:
    """Return the change of the taint; None if none is needed."""
    if has_shutdown_taint(node):
        reason = _explain_running(node, report)
        if not reason:
            return None
        changes = NodeChanges(remove_taints=(SHUTDOWN_TAINT,))
        return ShutdownTaintChange(changes=changes, is_set=False, reason=reason)
    reason = explain_shutdown(node, report)
    if not reason:
        return None
    return ShutdownTaintChange(changes=NodeChanges(set_taints=(SHUTDOWN_TAINT,)), is_set=True, reason=reason)


def explain_shutdown(node: Node, report: MachineReport | None) -> str:
    """Return the proof that the machine is shut down; "" if there is none."""
    if not isinstance(report, NodeUnreachable) or report.node.uid != node.uid:
        return ""
    last = report.last_known
    if last is None or last.stage != SHUTTING_DOWN_STAGE or report.fault.kind not in SILENT_FAULTS:
        return ""
    if report.fault.step == CONNECT_STEP or not is_not_ready(node):
        return ""
    at = f"{last.queried_at:%Y-%m-%dT%H:%M:%SZ}"
    return f"its machine said at {at} that it is {SHUTTING_DOWN_STAGE}, and has been silent since"


def _explain_running(node: Node, report: MachineReport | None) -> str:
    if is_ready(node):
        return "the Node is Ready"
    if (
        isinstance(report, NodeEnriched)
        and report.node.uid == node.uid
        and report.facts.stage != SHUTTING_DOWN_STAGE
    ):
        return "its machine answers"
    return ""
