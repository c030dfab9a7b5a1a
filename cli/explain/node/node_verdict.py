"""The verdict on a Node: its findings with cause and fix, or its state if there are none. Pure."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final, Literal

import msgspec

from cli.cluster.kube_events import find_config_rejection
from cli.cluster.unavailable import list_known
from cli.explain.node.finding import NodeCase, NodeFinding, compute_age, make_finding
from cli.explain.node.initialization_faults import find_initialization_faults
from cli.explain.node.node_evidence import NodeEvidence
from libs.common.contract.services import IPAM
from libs.common.contract.timestamp import parse_time

VerdictState = Literal["well", "moving", "stuck", "another's", "unknown"]

SOON: Final = timedelta(seconds=60)  # a kubelet becomes ready and requests a certificate within this time
_NOT_READY_TAINT: Final = "node.kubernetes.io/not-ready"  # kube-controller-manager sets and removes it
_FOREIGN_FAULTS: Final = frozenset({"of-another", "of-another-controller", "of-whom-is-not-known"})


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
        return NodeVerdict(state="unknown" if "not-told" in faults else "stuck", findings=findings)
    owed = case.plan is not None and bool(case.plan.changes.provider_id)
    is_owed = owed or is_starting(evidence) or _has_not_ready_taint(evidence)
    is_done = evidence.node.is_initialized and not is_owed
    return NodeVerdict(state="well" if is_done else "moving")


def is_starting(evidence: NodeEvidence) -> bool:
    """Whether the kubelet has just registered and may still become ready; usually it waits for a CNI."""
    ready = evidence.node.find_condition("Ready")
    may = ready is None or ready.status == "False"
    return may and compute_age(evidence.node.metadata.creation_timestamp, evidence.at) < SOON


def _has_not_ready_taint(evidence: NodeEvidence) -> bool:
    return any(taint.key == _NOT_READY_TAINT for taint in evidence.node.spec.taints)


def _list_findings(case: NodeCase) -> Iterator[NodeFinding]:
    deleted = case.evidence.node.metadata.deletion_timestamp
    if deleted is not None:
        yield make_finding(case, "being-deleted", f"since {deleted:%Y-%m-%d %H:%M:%S} UTC", deleted)
        return
    yield from find_initialization_faults(case)
    if case.mismatch:
        yield make_finding(case, "provider-id", case.mismatch)
    yield from _check_kubelet(case)
    yield from _check_pod_cidr(case)
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
        said = ": ".join(filter(None, (ready.reason, ready.message))) or f"Ready is {ready.status}"
        yield make_finding(case, "kubelet-silent" if ready.status == "Unknown" else "not-ready", said, since)
    elif _has_not_ready_taint(evidence) and compute_age(since, evidence.at) >= SOON:
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
        told = event.message.partition(f"{event.reason}: ")[2] or event.message
        yield make_finding(case, "no-pod-cidr", told)


def _check_certificate(case: NodeCase) -> Iterator[NodeFinding]:
    request = case.evidence.request
    if request is None or request.is_issued:
        return
    filed = request.metadata.creation_timestamp
    denied = request.find_condition("Denied") or request.find_condition("Failed")
    if denied is not None:
        yield make_finding(case, "certificate-denied", denied.message or denied.reason, filed)
    elif compute_age(filed, case.evidence.at) < SOON / 2:
        return
    elif request.find_condition("Approved") is not None:
        yield make_finding(case, "certificate-not-signed", "", filed)
    else:
        event = case.evidence.find_event("CSRWaiting")
        is_own = event is not None and request.name in event.message
        said = event.message if event is not None and is_own else "csr has not decided yet"
        yield make_finding(case, "certificate-waits", said, filed)
