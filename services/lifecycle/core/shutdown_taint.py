"""Plans the shutdown taint of machines that are off, by their own last report or by their cloud."""

from typing import Final

import msgspec

from libs.common.contract.events import InstanceShutDown, NodeEnriched, NodeUnreachable
from libs.common.contract.instances import read_instance_record
from libs.common.contract.machine import CONNECT_STEP
from libs.common.contract.node import Node, Taint
from libs.common.contract.node_patch import NodeChanges
from services.lifecycle.core.evidence import MachineReport, is_not_ready, is_ready
from services.lifecycle.core.instance_reports import InstanceViews

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


def plan_shutdown_taint(
    node: Node, report: MachineReport | None, instances: InstanceViews
) -> ShutdownTaintChange | None:
    """Return the change of the taint; None if none is needed."""
    if has_shutdown_taint(node):
        reason = _explain_running(node, report)
        if not reason:
            return None
        changes = NodeChanges(remove_taints=(SHUTDOWN_TAINT,))
        return ShutdownTaintChange(changes=changes, is_set=False, reason=reason)
    reason = explain_shutdown(node, report, instances)
    if not reason:
        return None
    return ShutdownTaintChange(changes=NodeChanges(set_taints=(SHUTDOWN_TAINT,)), is_set=True, reason=reason)


def explain_shutdown(node: Node, report: MachineReport | None, instances: InstanceViews) -> str:
    """Return the proof that the machine is shut down; "" if there is none."""
    return _explain_own_shutdown(node, report) or _explain_by_cloud(node, report, instances)


def _explain_own_shutdown(node: Node, report: MachineReport | None) -> str:
    if not isinstance(report, NodeUnreachable) or report.node.uid != node.uid:
        return ""
    last = report.last_known
    if last is None or last.stage != SHUTTING_DOWN_STAGE or report.fault.kind not in SILENT_FAULTS:
        return ""
    if report.fault.step == CONNECT_STEP or not is_not_ready(node):
        return ""
    at = f"{last.queried_at:%Y-%m-%dT%H:%M:%SZ}"
    return f"its machine said at {at} that it is {SHUTTING_DOWN_STAGE}, and has been silent since"


def _explain_by_cloud(node: Node, report: MachineReport | None, instances: InstanceViews) -> str:
    record = read_instance_record(node)
    view = instances.get(record.account) if record is not None else None
    if view is None or not isinstance(view.last, InstanceShutDown) or not is_not_ready(node):
        return ""
    answers = isinstance(report, NodeEnriched) and report.node.uid == node.uid
    if answers or (view.last.node_uid, view.last.provider_id) != (node.uid, node.spec.provider_id):
        return ""
    return f"account {view.last.account} reported at {view.last.asked_at:%Y-%m-%dT%H:%M:%SZ} that it is off"


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
