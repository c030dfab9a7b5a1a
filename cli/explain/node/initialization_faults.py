"""Why a Node is not initialized: its kubelet, its owner, the flow, its machine or a service. Pure."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from cli.cluster.kube_objects import COMPONENT
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import list_unready_pods
from cli.cluster.unavailable import list_known
from cli.explain.node.fault_texts import FAULT_BY_BLOCK_REASON, FAULT_BY_KIND
from cli.explain.node.finding import NodeCase, NodeFinding, compute_age, format_age, make_finding
from cli.explain.node.node_evidence import describe_fault
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable, StreamSnapshot
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, NodeCondition
from libs.common.contract.services import LABELER
from services.labeler.core.blocker import FAULT_REASONS
from services.labeler.core.plan.node_ownership import IF_NO_OTHER_CONTROLLER

WRITE_DEADLINE: Final = timedelta(seconds=15)  # per hop: metadata and the labeler each answer within 10 s
JOIN_DEADLINE: Final = timedelta(seconds=30)  # the labeler reports a blocked Node within this time
NATS: Final = "nats"  # the component label of the NATS pods
_FULL: Final = 0.98  # used part of the stream's bytes
_FAULT_OF_REASON: Final = {reason: FAULT_BY_KIND[kind] for kind, reason in FAULT_REASONS.items()}
_WRITING: Final = "writing the Node: "
_SILENT_SERVICES: Final = {"metadata-silent": "metadata", "labeler-silent": "labeler"}
_OF_SERVICES: Final = frozenset({"metadata-silent", "write-refused", "defect"})
# faults that depend on a file that this command does not have
_OF_THE_FILE: Final = frozenset({"rule-fails", "no-native-provider-id"})


def find_initialization_faults(case: NodeCase) -> Iterator[NodeFinding]:
    """Yield why the Node is not initialized; for an initialized Node, why its machine does not confirm it."""
    node = case.evidence.node
    if not node.provided_node_ip and not _is_foreign(case):
        yield from _check_kubelet_flags(case)
    elif case.not_managed_reason:
        yield make_finding(case, _name_owner(case), case.not_managed_reason)
    elif node.is_initialized:
        yield from _check_machine(case)
    else:
        own = tuple(_check_machine(case)) if not case.evidence.is_from_bus else ()
        both = own + tuple(_check_flow(case))
        yield from both or tuple(_check_blocker(case)) or tuple(_check_services(case))


def _name_owner(case: NodeCase) -> str:
    if _is_excluded(case):
        return "of-another"
    # While its machine is silent, the Node may still be ours: do not suggest its deletion.
    return (
        "of-whom-is-not-known"
        if isinstance(case.evidence.machine_result, MachineFault)
        else "of-another-controller"
    )


def _is_foreign(case: NodeCase) -> bool:
    """Whether the file excludes the Node, so that any kubelet configuration is correct.

    Without a providerID, `providerIDSchemes` decides nothing yet.
    """
    node, why = case.evidence.node, case.not_managed_reason
    return "ownership.nodeSelector" in why or (_is_excluded(case) and bool(node.spec.provider_id))


def _is_excluded(case: NodeCase) -> bool:
    """Whether ownership in the file excludes the Node; the other reason only names it as a way out."""
    return "ownership." in case.not_managed_reason and IF_NO_OTHER_CONTROLLER not in case.not_managed_reason


def _check_kubelet_flags(case: NodeCase) -> Iterator[NodeFinding]:
    node = case.evidence.node
    if not node.is_initialized:
        yield make_finding(case, "no-node-ip")
    elif not node.spec.provider_id:
        yield make_finding(case, "kubelet-not-external")


def _check_machine(case: NodeCase) -> Iterator[NodeFinding]:
    look = case.evidence.machine_result
    if isinstance(look, MachineFault):
        yield make_finding(case, FAULT_BY_KIND[look.kind], describe_fault(look))


def _check_flow(case: NodeCase) -> Iterator[NodeFinding]:
    """Yield the faults that affect every Node: no leader, NATS, or the stream."""
    evidence = case.evidence
    flow, lease = evidence.snapshot.flow, evidence.snapshot.lease
    is_led = isinstance(flow, FlowSnapshot) and flow.leading is not None
    why = lease.why_not_held(evidence.at) if isinstance(lease, LeaseState) and not is_led else ""
    if why:
        yield make_finding(case, "no-leader", why)
    match flow:
        case FlowUnavailable(nats_error=str(error)):
            yield make_finding(case, "nats-silent", error)
        case FlowUnavailable(is_all_in_one=False) if _is_down(case, NATS):
            yield make_finding(case, "nats-silent")
        case FlowSnapshot(stream=None) if not why:
            yield make_finding(case, "no-stream")
        case FlowSnapshot(stream=StreamSnapshot(bytes=used, max_bytes=most)) if 0 < most * _FULL < used:
            yield make_finding(case, "stream-full", f"{used} of {most} bytes")


def _is_down(case: NodeCase, service: str) -> bool:
    """Whether no pod of the service is ready: in a rollout, other replicas work."""
    pods = list_known(case.evidence.snapshot.pods)
    own = [pod for pod in pods if pod.metadata.labels.get(COMPONENT, "") in ("", service)]
    return not any(pod.is_ready for pod in own) and any(list_unready_pods(pods, service))


def _check_blocker(case: NodeCase) -> Iterator[NodeFinding]:
    """Yield the labeler's blocker: by its plan, its last decision, or the condition on the Node."""
    evidence, blocker = case.evidence, case.plan.blocker if case.plan else None
    if isinstance(evidence.machine_result, MachineFault):
        yield from _check_machine(case)
        return
    if blocker is not None and blocker.reason in FAULT_BY_BLOCK_REASON:
        yield make_finding(case, FAULT_BY_BLOCK_REASON[blocker.reason], blocker.message)
        return
    condition = evidence.node.find_condition(BLOCKED_CONDITION)
    decided = evidence.find_decision(LABELER)
    if decided is not None and decided.reason.startswith(_WRITING):
        yield make_finding(case, "write-refused", decided.reason.removeprefix(_WRITING))
    elif condition is not None:
        yield from _check_blocked_condition(case, condition)


def _check_blocked_condition(case: NodeCase, condition: NodeCondition) -> Iterator[NodeFinding]:
    asked = case.evidence.machine_result is not None
    reasons = FAULT_BY_BLOCK_REASON if asked else {**FAULT_BY_BLOCK_REASON, **_FAULT_OF_REASON}
    fault = reasons.get(condition.reason)
    answered = asked and case.plan is not None and case.plan.blocker is None
    believed = _OF_SERVICES if case.evidence.config_file else _OF_SERVICES | _OF_THE_FILE
    if fault is None or (answered and fault not in believed):
        return  # the condition is outdated
    yield make_finding(case, fault, condition.message.removeprefix(_WRITING))


def _check_services(case: NodeCase) -> Iterator[NodeFinding]:
    """Yield which service is late, if nothing blocks the Node."""
    evidence = case.evidence
    messages, node, at = evidence.last_messages, evidence.node, evidence.at
    age = compute_age(node.metadata.creation_timestamp, at)
    if age < WRITE_DEADLINE:
        return
    if messages.problem:
        down = [fault for fault, service in _SILENT_SERVICES.items() if _is_down(case, service)]
        if down:
            yield make_finding(case, down[0])
        elif age >= JOIN_DEADLINE:
            why = "; ".join(filter(None, (evidence.not_queried_reason, messages.problem)))
            yield make_finding(case, "not-told", why)
    elif messages.observed is None or messages.observed.node.uid != node.uid:
        yield make_finding(case, "watcher-silent", "it is not in NATS")
    elif evidence.machine_event is None:
        if compute_age(messages.observed.observed_at, at) >= WRITE_DEADLINE:
            ago = format_age(messages.observed.observed_at, at)
            yield make_finding(case, "metadata-silent", f"the watcher published it {ago} ago")
    elif compute_age(evidence.machine_event.enriched_at, at) >= WRITE_DEADLINE:
        ago = f"metadata published it {format_age(evidence.machine_event.enriched_at, at)} ago"
        listed = evidence.snapshot.flow_snapshot.services if evidence.snapshot.flow_snapshot else ()
        absent = (each.why for each in listed if each.service == LABELER.service and each.why)
        yield make_finding(case, "labeler-silent", "; ".join((ago, *absent)))
