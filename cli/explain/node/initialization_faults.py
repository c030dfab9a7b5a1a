"""Why a Node is not initialized: its kubelet, its owner, the flow, its machine or a service. Pure."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from cli.explain.node.fault_texts import FAULT_BY_BLOCK_REASON, FAULT_BY_KIND
from cli.explain.node.finding import (
    NO_INITIALIZER,
    UNINITIALIZED,
    NodeCase,
    NodeFinding,
    append_unready_pods,
    compute_age,
    describe_down_pods,
    describe_fault,
    format_age,
    make_finding,
)
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, NodeCondition
from libs.common.contract.services import LABELER
from services.labeler.blocker import FAULT_REASONS
from services.labeler.plan.node_ownership import IF_NO_OTHER_CONTROLLER

WRITE_DEADLINE: Final = timedelta(seconds=15)  # per hop: metadata and the labeler each answer within 10 s
JOIN_DEADLINE: Final = timedelta(seconds=30)  # the labeler reports a blocked Node within this time
NATS: Final = "nats"  # the component label of the NATS pods
_FULL: Final = 0.98  # used part of the stream's bytes
_FAULT_OF_REASON: Final = {reason: FAULT_BY_KIND[kind] for kind, reason in FAULT_REASONS.items()}
_WRITING: Final = "writing the Node: "
_OF_SERVICES: Final = frozenset({"metadata-silent", "write-refused", "defect"})
# faults that depend on a file that this command does not have
_OF_THE_FILE: Final = frozenset({"rule-fails", "no-native-provider-id"})
_PODS_OF: Final = {"metadata-silent": ("metadata",)}


def find_initialization_faults(case: NodeCase) -> Iterator[NodeFinding]:
    """Yield why the Node is not initialized; for an initialized Node, why its machine does not confirm it."""
    evidence = case.evidence
    node = evidence.node
    if not node.provided_node_ip and not _is_foreign(case):
        yield from _check_kubelet_flags(case)
    elif case.not_managed_reason:
        yield make_finding(
            case, _name_owner(case), case.not_managed_reason, what="managed by another controller"
        )
    elif node.is_initialized:
        yield from _check_machine(case, what="initialized, but its machine does not confirm it")
    else:
        own = tuple(_check_machine(case, what=UNINITIALIZED)) if not evidence.is_from_bus else ()
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
        yield make_finding(case, "no-node-ip", "", what=UNINITIALIZED)
    elif not node.spec.provider_id:
        yield make_finding(case, "kubelet-not-external", "", what=NO_INITIALIZER)


def _check_machine(case: NodeCase, *, what: str) -> Iterator[NodeFinding]:
    look = case.evidence.machine_result
    if isinstance(look, MachineFault):
        yield make_finding(case, FAULT_BY_KIND[look.kind], describe_fault(look), what=what)


def _check_flow(case: NodeCase) -> Iterator[NodeFinding]:
    """Yield the faults that affect every Node: no leader, NATS, or the stream."""
    evidence, flow = case.evidence, case.evidence.flow
    leads = isinstance(flow, FlowSnapshot) and flow.leading is not None
    lease = evidence.context.lease
    why = lease.why_not_held(evidence.at) if lease is not None and not leads else ""
    if why:
        yield make_finding(case, "no-leader", append_unready_pods(case, why, "watcher"), what=UNINITIALIZED)
    if isinstance(flow, FlowUnavailable) and flow.nats_error is not None:
        said = append_unready_pods(case, flow.nats_error, NATS)
        yield make_finding(case, "nats-silent", said, what=UNINITIALIZED)
    elif (
        isinstance(flow, FlowUnavailable)
        and not flow.is_all_in_one
        and (down := describe_down_pods(case, NATS))
    ):
        yield make_finding(case, "nats-silent", down, what=UNINITIALIZED)
    elif isinstance(flow, FlowSnapshot) and flow.stream is None and not why:
        yield make_finding(case, "no-stream", "", what=UNINITIALIZED)
    elif (
        isinstance(flow, FlowSnapshot)
        and flow.stream
        and 0 < flow.stream.max_bytes * _FULL < flow.stream.bytes
    ):
        full = f"{flow.stream.bytes} of {flow.stream.max_bytes} bytes"
        yield make_finding(case, "stream-full", full, what=UNINITIALIZED)


def _check_blocker(case: NodeCase) -> Iterator[NodeFinding]:
    """Yield the labeler's blocker: by its plan, its last decision, or the condition on the Node."""
    evidence, plan = case.evidence, case.plan
    if isinstance(evidence.machine_result, MachineFault):
        yield from _check_machine(case, what=UNINITIALIZED)
        return
    if plan is not None and plan.blocker is not None and plan.blocker.reason in FAULT_BY_BLOCK_REASON:
        yield make_finding(
            case, FAULT_BY_BLOCK_REASON[plan.blocker.reason], plan.blocker.message, what=UNINITIALIZED
        )
        return
    condition = evidence.node.find_condition(BLOCKED_CONDITION)
    decided = (
        evidence.last_messages.find_decision(LABELER.service, evidence.node)
        if evidence.last_messages
        else None
    )
    if decided is not None and decided.reason.startswith(_WRITING):
        yield make_finding(case, "write-refused", decided.reason.removeprefix(_WRITING), what=UNINITIALIZED)
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
    said = append_unready_pods(case, condition.message.removeprefix(_WRITING), *_PODS_OF.get(fault, ()))
    yield make_finding(case, fault, said, what=UNINITIALIZED)


def _check_services(case: NodeCase) -> Iterator[NodeFinding]:
    """Yield which service is late, if nothing blocks the Node."""
    evidence = case.evidence
    words, node, at = evidence.last_messages, evidence.node, evidence.at
    if compute_age(node.metadata.creation_timestamp, at) < WRITE_DEADLINE:
        return
    if words is None or words.problem:
        if down := describe_down_pods(case, "metadata"):
            yield make_finding(case, "metadata-silent", down, what=UNINITIALIZED)
        elif down := describe_down_pods(case, "labeler"):
            yield make_finding(case, "labeler-silent", down, what=UNINITIALIZED)
        elif compute_age(node.metadata.creation_timestamp, at) >= JOIN_DEADLINE:
            why = "; ".join(filter(None, (evidence.not_queried_reason, words.problem if words else "")))
            yield make_finding(
                case,
                "not-told",
                why or "neither the machine nor the services were queried",
                what=UNINITIALIZED,
            )
    elif words.observed is None or words.observed.node.uid != node.uid:
        yield make_finding(
            case,
            "watcher-silent",
            append_unready_pods(case, "it is not in NATS", "watcher"),
            what=UNINITIALIZED,
        )
    elif words.find_machine_event(node) is None:
        if compute_age(words.observed.observed_at, at) >= WRITE_DEADLINE:
            ago = f"the watcher published it {format_age(words.observed.observed_at, at)} ago"
            yield make_finding(
                case, "metadata-silent", append_unready_pods(case, ago, "metadata"), what=UNINITIALIZED
            )
    else:
        yield from _check_labeler(case)


def _check_labeler(case: NodeCase) -> Iterator[NodeFinding]:
    evidence = case.evidence
    said = evidence.last_messages.find_machine_event(evidence.node) if evidence.last_messages else None
    if said is None or compute_age(said.enriched_at, evidence.at) < WRITE_DEADLINE:
        return
    why = f"metadata published it {format_age(said.enriched_at, evidence.at)} ago"
    flow = evidence.flow
    seen = (
        [one for one in flow.services if one.service == LABELER.service]
        if isinstance(flow, FlowSnapshot)
        else []
    )
    why = "; ".join((why, *(one.why for one in seen if one.why)))
    yield make_finding(case, "labeler-silent", append_unready_pods(case, why, "labeler"), what=UNINITIALIZED)
