"""Plans the shutdown taint of machines that are off, by their own last report or by their cloud."""

from typing import Final

from libs.common.contract.events import InstanceShutDown, NodeEnriched, NodeUnreachable
from libs.common.contract.machine import CONNECT_STEP, FAULT_KINDS
from libs.common.contract.node import Node
from libs.common.contract.node_patch import NodeChanges
from services.lifecycle.core.evidence import MachineReport, is_not_ready, is_ready
from services.lifecycle.core.node_change import SHUTDOWN_TAINT, ChangeKind, NodeChange
from services.lifecycle.core.node_index import DeletionCase

SHUTTING_DOWN_STAGE: Final = "shutting down"  # MachineStatus.runtime.talos.dev


def has_shutdown_taint(node: Node) -> bool:
    """Whether the Node has the shutdown taint."""
    return any(
        (taint.key, taint.effect) == (SHUTDOWN_TAINT.key, SHUTDOWN_TAINT.effect) for taint in node.spec.taints
    )


def plan_shutdown_taint(case: DeletionCase) -> NodeChange | None:
    """Return the change of the taint; None if none is needed."""
    if has_shutdown_taint(case.node):
        kind, changes = ChangeKind.REMOVED_TAINT, NodeChanges(remove_taints=(SHUTDOWN_TAINT,))
        reason = _explain_running(case)
    else:
        kind, changes = ChangeKind.SET_TAINT, NodeChanges(set_taints=(SHUTDOWN_TAINT,))
        reason = explain_shutdown(case)
    return NodeChange(kind=kind, changes=changes, reason=reason) if reason else None


def explain_shutdown(case: DeletionCase) -> str:
    """Return the proof that the machine is shut down; "" if there is none."""
    if not is_not_ready(case.node):
        return ""
    return _explain_own_shutdown(case.node, case.report) or _explain_by_cloud(case)


def _explain_own_shutdown(node: Node, report: MachineReport | None) -> str:
    if not isinstance(report, NodeUnreachable) or report.node.uid != node.uid:
        return ""
    last = report.last_known
    if last is None or last.stage != SHUTTING_DOWN_STAGE or not FAULT_KINDS[report.fault.kind].is_silent:
        return ""
    if report.fault.step == CONNECT_STEP:
        return ""
    at = f"{last.queried_at:%Y-%m-%dT%H:%M:%SZ}"
    return f"its machine said at {at} that it is {SHUTTING_DOWN_STAGE}, and has been silent since"


def _explain_by_cloud(case: DeletionCase) -> str:
    node, record = case.node, case.record
    view = case.instances.get(record.account) if record is not None else None
    if view is None or not isinstance(view.last, InstanceShutDown) or _answers(case):
        return ""
    if (view.last.node_uid, view.last.provider_id) != (node.uid, node.spec.provider_id):
        return ""
    return f"account {view.last.account} reported at {view.last.asked_at:%Y-%m-%dT%H:%M:%SZ} that it is off"


def _explain_running(case: DeletionCase) -> str:
    if is_ready(case.node):
        return "the Node is Ready"
    is_going = isinstance(case.report, NodeEnriched) and case.report.facts.stage == SHUTTING_DOWN_STAGE
    return "its machine answers" if _answers(case) and not is_going else ""


def _answers(case: DeletionCase) -> bool:
    return isinstance(case.report, NodeEnriched) and case.report.node.uid == case.node.uid
