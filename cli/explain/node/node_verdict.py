"""The verdict on a Node: its findings with cause and fix, or its state if there are none. Pure."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final, Literal

import msgspec

from cli.cluster.kube_events import find_config_rejection
from cli.cluster.kube_objects import COMPONENT
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import list_unready_pods
from cli.cluster.unavailable import list_known
from cli.explain.node.cloud_state import explains_fault, find_instance_fault, find_missing_route
from cli.explain.node.finding import NodeCase, NodeFinding, compute_age, make_finding
from cli.explain.node.node_evidence import NodeEvidence, describe_fault
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable, StreamSnapshot
from cli.lines import format_age
from libs.common.contract.fault_texts import FAULT_BY_BLOCK_REASON
from libs.common.contract.machine import FAULT_KINDS
from libs.common.contract.node import BLOCKED_CONDITION, NodeCondition
from libs.common.contract.services import IPAM, LABELER
from libs.common.contract.timestamp import parse_time
from services.labeler.core.plan.node_ownership import IF_NO_OTHER_CONTROLLER
from services.lifecycle.core.evidence import is_not_ready

VerdictState = Literal["well", "moving", "stuck", "another's", "unknown"]

_SOON: Final = timedelta(seconds=60)  # a kubelet becomes ready and requests a certificate within this time
_NOT_READY_TAINT: Final = "node.kubernetes.io/not-ready"  # kube-controller-manager sets and removes it
_FOREIGN_FAULTS: Final = frozenset({"of-another", "of-another-controller", "owner-unknown"})
_WRITE_DEADLINE: Final = timedelta(seconds=15)  # per hop: metadata and the labeler each answer within 10 s
_JOIN_DEADLINE: Final = timedelta(seconds=30)  # the labeler reports a blocked Node within this time
_NATS: Final = "nats"  # the component label of its pods
_FULL: Final = 0.98  # used part of the stream's bytes
_FAULT_OF_REASON: Final = {kind.block_reason: kind.text for kind in FAULT_KINDS.values()}
_WRITING: Final = "writing the Node: "
_SILENT_SERVICES: Final = {"metadata-silent": "metadata", "labeler-silent": "labeler"}
_OF_SERVICES: Final = frozenset({"metadata-silent", "write-refused", "defect"})
# faults that depend on a file that this command does not have
_OF_THE_FILE: Final = frozenset({"rule-fails", "no-native-provider-id"})


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the Node, and its findings in the order in which to fix them."""

    state: VerdictState
    findings: tuple[NodeFinding, ...] = ()


def judge_node(case: NodeCase) -> NodeVerdict:
    """Return all findings, and the state that follows from them."""
    findings = tuple(_list_findings(case))
    evidence = case.evidence
    faults = {one.fault for one in findings}
    if faults and faults <= _FOREIGN_FAULTS and evidence.node.is_initialized:
        return NodeVerdict(state="another's", findings=findings)
    if faults:
        return NodeVerdict(state="unknown" if "cause-unknown" in faults else "stuck", findings=findings)
    owed = case.plan is not None and bool(case.plan.changes.provider_id)
    is_owed = owed or is_starting(evidence) or _has_not_ready_taint(evidence)
    is_done = evidence.node.is_initialized and not is_owed
    return NodeVerdict(state="well" if is_done else "moving")


def is_starting(evidence: NodeEvidence) -> bool:
    """Whether the kubelet has just registered and may still become ready; usually it waits for a CNI."""
    ready = evidence.node.find_condition("Ready")
    may = ready is None or ready.status == "False"
    return may and compute_age(evidence.node.metadata.creation_timestamp, evidence.at) < _SOON


def _has_not_ready_taint(evidence: NodeEvidence) -> bool:
    return any(taint.key == _NOT_READY_TAINT for taint in evidence.node.spec.taints)


def _list_findings(case: NodeCase) -> Iterator[NodeFinding]:
    deleted = case.evidence.node.metadata.deletion_timestamp
    if deleted is not None:
        yield make_finding(case, "being-deleted", f"since {deleted:%Y-%m-%d %H:%M:%S} UTC", deleted)
        return
    may_be_lost = is_not_ready(case.evidence.node) and not is_starting(case.evidence)
    of_cloud = find_instance_fault(case) if may_be_lost else None
    if of_cloud is None:
        yield from _list_other_findings(case)
        return
    others = (each for each in _list_other_findings(case) if not explains_fault(of_cloud, each))
    # The silence of an account explains no silence of a machine.
    yield from (*others, of_cloud) if of_cloud.fault == "instance-unknown" else (of_cloud, *others)


def _list_other_findings(case: NodeCase) -> Iterator[NodeFinding]:
    yield from _find_initialization_faults(case)
    if case.mismatch:
        yield make_finding(case, "provider-id", case.mismatch)
    yield from _check_kubelet(case)
    yield from _check_pod_cidr(case)
    yield from _check_route(case)
    yield from _check_certificate(case)
    rejected = find_config_rejection(list_known(case.evidence.snapshot.events))
    if case.evidence.file_mistakes:
        yield make_finding(case, "cloud-config-refused", case.evidence.file_mistakes)
    elif rejected is not None:
        yield make_finding(case, "cloud-config-refused", rejected.message, rejected.at)


def _check_kubelet(case: NodeCase) -> Iterator[NodeFinding]:
    evidence = case.evidence
    ready = evidence.node.find_condition("Ready")
    if is_starting(evidence):
        return
    if ready is None:
        yield make_finding(case, "not-ready", "its kubelet has not reported yet")
        return
    since = parse_time(ready.last_transition_time)
    if ready.status != "True":
        detail = ": ".join(filter(None, (ready.reason, ready.message))) or f"Ready is {ready.status}"
        yield make_finding(
            case, "kubelet-silent" if ready.status == "Unknown" else "not-ready", detail, since
        )
    elif _has_not_ready_taint(evidence) and compute_age(since, evidence.at) >= _SOON:
        yield make_finding(case, "not-ready-taint", _NOT_READY_TAINT, since)


def _check_pod_cidr(case: NodeCase) -> Iterator[NodeFinding]:
    evidence = case.evidence
    if evidence.node.spec.pod_cidrs:
        return
    decided = evidence.find_decision(IPAM)
    event = evidence.find_event("CIDRNotAvailable", "CIDRAssignmentFailed")
    if decided is not None and decided.outcome == "unserved":
        yield make_finding(case, "no-pod-cidr", decided.reason)
    elif event is not None and (decided is None or decided.decided_at < event.at):
        detail = event.message.partition(f"{event.reason}: ")[2] or event.message
        yield make_finding(case, "no-pod-cidr", detail)


def _check_route(case: NodeCase) -> Iterator[NodeFinding]:
    missing = find_missing_route(case.evidence)
    if missing is not None:
        detail = missing.message or missing.reason
        yield make_finding(case, "no-route", detail, parse_time(missing.last_transition_time))


def _check_certificate(case: NodeCase) -> Iterator[NodeFinding]:
    request = case.evidence.request
    if request is None or request.status.is_issued:
        return
    filed = request.metadata.creation_timestamp
    denied = request.find_condition("Denied") or request.find_condition("Failed")
    if denied is not None:
        yield make_finding(case, "certificate-denied", denied.message or denied.reason, filed)
    elif compute_age(filed, case.evidence.at) < _SOON / 2:
        return
    elif request.find_condition("Approved") is not None:
        yield make_finding(case, "certificate-not-signed", "", filed)
    else:
        event = case.evidence.find_event("CSRWaiting")
        is_own = event is not None and request.name in event.message
        detail = event.message if event is not None and is_own else "csr has not decided yet"
        yield make_finding(case, "certificate-waits", detail, filed)


def _find_initialization_faults(case: NodeCase) -> Iterator[NodeFinding]:
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
    return "owner-unknown" if case.evidence.fault else "of-another-controller"


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
    if (fault := case.evidence.fault) is not None:
        yield make_finding(case, FAULT_KINDS[fault.kind].text, describe_fault(fault))


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
        case FlowUnavailable(is_all_in_one=False) if _is_down(case, _NATS):
            yield make_finding(case, "nats-silent")
        case FlowSnapshot(stream=None) if not why:
            yield make_finding(case, "no-stream")
        case FlowSnapshot(stream=StreamSnapshot(bytes=used, max_bytes=int(most))) if used > most * _FULL:
            yield make_finding(case, "stream-full", f"{used} of {most} bytes")


def _is_down(case: NodeCase, service: str) -> bool:
    """Whether no pod of the service is ready: in a rollout, other replicas work."""
    pods = list_known(case.evidence.snapshot.pods)
    own = [pod for pod in pods if pod.metadata.labels.get(COMPONENT, "") in ("", service)]
    return not any(pod.is_ready for pod in own) and any(list_unready_pods(pods, service))


def _check_blocker(case: NodeCase) -> Iterator[NodeFinding]:
    """Yield the labeler's blocker: by its plan, its last decision, or the condition on the Node."""
    evidence, blocker = case.evidence, case.plan.blocker if case.plan else None
    if evidence.fault is not None:
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
    asked = case.evidence.report is not None
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
    observed, at, problem = evidence.observed, evidence.at, evidence.messages_problem
    age = compute_age(evidence.node.metadata.creation_timestamp, at)
    if age < _WRITE_DEADLINE:
        return
    if problem:
        down = [fault for fault, service in _SILENT_SERVICES.items() if _is_down(case, service)]
        if down:
            yield make_finding(case, down[0])
        elif age >= _JOIN_DEADLINE:
            why = "; ".join(filter(None, (evidence.not_queried_reason, problem)))
            yield make_finding(case, "cause-unknown", why)
    elif observed is None:
        yield make_finding(case, "watcher-silent", "it is not in NATS")
    elif evidence.machine_event is None:
        if compute_age(observed.observed_at, at) >= _WRITE_DEADLINE:
            ago = format_age((at - observed.observed_at).total_seconds())
            yield make_finding(case, "metadata-silent", f"the watcher published it {ago} ago")
    elif compute_age(evidence.machine_event.enriched_at, at) >= _WRITE_DEADLINE:
        seconds = (at - evidence.machine_event.enriched_at).total_seconds()
        ago = f"metadata published it {format_age(seconds)} ago"
        listed = evidence.snapshot.flow_snapshot.services if evidence.snapshot.flow_snapshot else ()
        absent = (each.why for each in listed if each.service == LABELER.service and each.why)
        yield make_finding(case, "labeler-silent", "; ".join((ago, *absent)))
