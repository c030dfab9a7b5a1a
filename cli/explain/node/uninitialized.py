"""Why a Node has not been initialised: its kubelet, its owner, the flow, its machine or a service. Pure."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from cli.explain.node.faults import OF_BLOCK, OF_FAULT
from cli.explain.node.finding import (
    UNASKED,
    UNINITIALIZED,
    Case,
    Finding,
    age,
    and_pods,
    found,
    if_down,
    of_fault,
    seconds,
)
from cli.inside.seen import FlowSeen, Unknown
from libs.common.machine import MachineFault
from libs.common.node import BLOCKED_CONDITION, NodeCondition
from libs.common.service_spec import LABELER
from services.labeler.blocker import FAULT_REASONS

CARRIED_OUT: Final = timedelta(seconds=15)  # for each hop; metadata answers within 10 s, the labeler, too
JOINED: Final = timedelta(seconds=30)  # by then whatever blocks a Node is told on it
NATS: Final = "nats"  # as the chart labels its pods
NATS_SILENT: Final = "NATS does not tell"
_FULL: Final = 0.98  # of a stream's bytes
_FAULT_OF_REASON: Final = {reason: OF_FAULT[kind] for kind, reason in FAULT_REASONS.items()}
_WRITING: Final = "writing the Node: "
_OF_SERVICES: Final = frozenset({"metadata-silent", "write-refused", "defect"})
_OF_THE_FILE: Final = frozenset({"rule-fails", "no-native-provider-id"})  # which is not known here
_PODS_OF: Final = {"metadata-silent": ("metadata",)}


def of_initialization(case: Case) -> Iterator[Finding]:
    """Why nobody has initialised it; of one that is, whether its machine answers for it."""
    evidence = case.evidence
    node = evidence.node
    if not node.provided_node_ip and not _is_left_to_another(case):
        yield from _of_kubelet_flags(case)
    elif case.why_not_ours:
        yield found(case, _of_whom(case), case.why_not_ours, what="another's")
    elif node.is_initialized:
        yield from _of_machine(case, what="initialized, and its machine does not answer for it")
    else:
        own = tuple(_of_machine(case, what=UNINITIALIZED)) if not evidence.heard else ()
        both = own + tuple(_of_flow(case))
        yield from both or tuple(_of_block(case)) or tuple(_of_services(case))


def _of_whom(case: Case) -> str:
    if "ownership." in case.why_not_ours:
        return "of-another"
    # Its own machine, once it answers, may have it be ours: nobody is told to delete such a Node.
    return "of-whom-is-not-known" if isinstance(case.evidence.look, MachineFault) else "of-another-controller"


def _is_left_to_another(case: Case) -> bool:
    """By the file: then its kubelet may run as it likes. Of no providerID, schemes say nothing yet."""
    node, why = case.evidence.node, case.why_not_ours
    return "ownership.nodeSelector" in why or ("ownership." in why and bool(node.spec.provider_id))


def _of_kubelet_flags(case: Case) -> Iterator[Finding]:
    node = case.evidence.node
    if not node.is_initialized:
        yield found(case, "no-node-ip", "", what=UNINITIALIZED)
    elif not node.spec.provider_id:
        yield found(case, "kubelet-not-external", "", what=UNASKED)


def _of_machine(case: Case, *, what: str) -> Iterator[Finding]:
    look = case.evidence.look
    if isinstance(look, MachineFault):
        yield found(case, OF_FAULT[look.kind], of_fault(look), what=what)


def _of_flow(case: Case) -> Iterator[Finding]:
    """What stands in everybody's way."""
    evidence, flow = case.evidence, case.evidence.flow
    leads = isinstance(flow, FlowSeen) and flow.leading is not None
    lease = evidence.around.leadership
    why = lease.why_nobody_leads(evidence.at) if lease is not None and not leads else ""
    if why:
        yield found(case, "no-leader", and_pods(case, why, "watcher"), what=UNINITIALIZED)
    if isinstance(flow, Unknown) and flow.reason.startswith(NATS_SILENT):
        said = flow.reason.removeprefix(NATS_SILENT).lstrip(": ")
        yield found(case, "nats-silent", and_pods(case, said, NATS), what=UNINITIALIZED)
    elif isinstance(flow, Unknown) and not flow.all_in_one and (down := if_down(case, NATS)):
        yield found(case, "nats-silent", down, what=UNINITIALIZED)
    elif isinstance(flow, FlowSeen) and flow.stream is None and not why:
        yield found(case, "no-stream", "", what=UNINITIALIZED)
    elif isinstance(flow, FlowSeen) and flow.stream and 0 < flow.stream.max_bytes * _FULL < flow.stream.bytes:
        full = f"{flow.stream.bytes} of {flow.stream.max_bytes} bytes"
        yield found(case, "stream-full", full, what=UNINITIALIZED)


def _of_block(case: Case) -> Iterator[Finding]:
    """What the labeler says, or would say by what is so now, or has written on the Node."""
    evidence, plan = case.evidence, case.plan
    if isinstance(evidence.look, MachineFault):
        yield from _of_machine(case, what=UNINITIALIZED)
        return
    if plan is not None and plan.blocker is not None and plan.blocker.reason in OF_BLOCK:
        yield found(case, OF_BLOCK[plan.blocker.reason], plan.blocker.message, what=UNINITIALIZED)
        return
    condition = evidence.node.find_condition(BLOCKED_CONDITION)
    decided = evidence.last_words.of(LABELER.service, evidence.node) if evidence.last_words else None
    if decided is not None and decided.reason.startswith(_WRITING):
        yield found(case, "write-refused", decided.reason.removeprefix(_WRITING), what=UNINITIALIZED)
    elif condition is not None:
        yield from _of_condition(case, condition)


def _of_condition(case: Case, condition: NodeCondition) -> Iterator[Finding]:
    asked = case.evidence.look is not None
    reasons = OF_BLOCK if asked else {**OF_BLOCK, **_FAULT_OF_REASON}
    fault = reasons.get(condition.reason)
    answered = asked and case.plan is not None and case.plan.blocker is None
    believed = _OF_SERVICES if case.evidence.file else _OF_SERVICES | _OF_THE_FILE
    if fault is None or (answered and fault not in believed):
        return  # it was so, and is not any more
    said = and_pods(case, condition.message.removeprefix(_WRITING), *_PODS_OF.get(fault, ()))
    yield found(case, fault, said, what=UNINITIALIZED)


def _of_services(case: Case) -> Iterator[Finding]:
    """Nothing stands in its way, and nobody has taken it up."""
    evidence = case.evidence
    words, node, at = evidence.last_words, evidence.node, evidence.at
    if age(node.metadata.creation_timestamp, at) < CARRIED_OUT:
        return
    if words is None or words.problem:
        if down := if_down(case, "metadata"):
            yield found(case, "metadata-silent", down, what=UNINITIALIZED)
        elif down := if_down(case, "labeler"):
            yield found(case, "labeler-silent", down, what=UNINITIALIZED)
        elif age(node.metadata.creation_timestamp, at) >= JOINED:
            why = "; ".join(filter(None, (evidence.not_asked, words.problem if words else "")))
            yield found(case, "not-told", why or "nobody was asked what the services say", what=UNINITIALIZED)
    elif words.observed is None or words.observed.node.uid != node.uid:
        yield found(
            case, "watcher-silent", and_pods(case, "it is not in NATS", "watcher"), what=UNINITIALIZED
        )
    elif words.machine_of(node) is None:
        if age(words.observed.observed_at, at) >= CARRIED_OUT:
            ago = f"the watcher told it {seconds(words.observed.observed_at, at)} ago"
            yield found(case, "metadata-silent", and_pods(case, ago, "metadata"), what=UNINITIALIZED)
    else:
        yield from _of_labeler(case)


def _of_labeler(case: Case) -> Iterator[Finding]:
    evidence = case.evidence
    said = evidence.last_words.machine_of(evidence.node) if evidence.last_words else None
    if said is None or age(said.enriched_at, evidence.at) < CARRIED_OUT:
        return
    why = f"metadata told it {seconds(said.enriched_at, evidence.at)} ago"
    flow = evidence.flow
    seen = (
        [one for one in flow.services if one.service == LABELER.service] if isinstance(flow, FlowSeen) else []
    )
    why = "; ".join((why, *(one.why for one in seen if one.why)))
    yield found(case, "labeler-silent", and_pods(case, why, "labeler"), what=UNINITIALIZED)
