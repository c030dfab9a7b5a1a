"""What is wrong with a Node, why, and what mends it: the first thing that is told. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from cli.explain.node.evidence import Evidence
from cli.explain.node.faults import FAULTS, OF_BLOCK, OF_FAULT
from cli.inside.seen import FlowSeen, Unknown
from libs.common.machine import MachineFault
from libs.common.node import CONDITION_BLOCKED, NodeCondition
from libs.common.wiring import LABELER
from services.labeler.blocked import REASON_OF_FAULT
from services.labeler.plan import Plan

State = Literal["well", "moving", "stuck", "another's", "unknown"]

UNINITIALIZED: Final = "not initialized"
UNASKED: Final = "initialized by nobody"
WITHOUT_POD_CIDR: Final = "without a pod CIDR"
CARRIED_OUT: Final = timedelta(seconds=15)  # for each hop; metadata answers within 10 s, the labeler, too
JOINED: Final = timedelta(seconds=30)  # by then whatever blocks a Node is told on it
SOON: Final = timedelta(seconds=60)  # a kubelet's start, a request for a certificate
_FULL: Final = 0.98  # of a stream's bytes
_FAULT_OF_REASON: Final = {reason: OF_FAULT[kind] for kind, reason in REASON_OF_FAULT.items()}
# What one has to have oneself to ask Talos: refused here, it may well be granted to metadata.
OWN_ACCESS: Final = frozenset({"certificate", "permission", "no_endpoint"})


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    fault: str  # a key of FAULTS
    what: str  # the Node is, or has, because of it
    since: datetime | None
    cause: str
    fix: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The findings in the order in which they are to be mended."""

    state: State
    findings: tuple[Finding, ...] = ()


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is judged."""

    evidence: Evidence
    plan: Plan | None
    why_not_ours: str  # the labeler's reason
    mismatch: str = ""  # of the providerID


def judge(case: Case) -> Verdict:
    """All that is wrong; the state, if nothing is."""
    findings = tuple(_findings(case))
    evidence = case.evidence
    faults = {one.fault for one in findings}
    if faults and faults <= {"of-another", "of-another-controller"} and evidence.node.initialized:
        return Verdict(state="another's", findings=findings)
    if faults:
        return Verdict(state="unknown" if "not-told" in faults else "stuck", findings=findings)
    return Verdict(state="well" if evidence.node.initialized else "moving")


def _findings(case: Case) -> Iterator[Finding]:
    node = case.evidence.node
    if node.metadata.deletion_timestamp is not None:
        held = f"since {node.metadata.deletion_timestamp:%Y-%m-%d %H:%M:%S} UTC"
        yield _found(
            case, "being-deleted", held, what="being deleted", since=node.metadata.deletion_timestamp
        )
        return
    yield from _of_initialization(case)
    if case.mismatch:
        yield _found(case, "provider-id", case.mismatch, what="under another providerID")
    yield from _of_kubelet(case)
    yield from _of_pod_cidr(case)
    yield from _of_certificate(case)
    yield from _of_file(case)


def _of_file(case: Case) -> Iterator[Finding]:
    evidence, what = case.evidence, "under old rules, or none"
    told = next((each for each in evidence.around.of_cluster if each.reason in _OF_CLOUD_CONFIG), None)
    if evidence.file_mistakes:
        yield _found(case, "cloud-config-refused", evidence.file_mistakes, what=what)
    elif told is not None and told.reason == "CloudConfigRejected":
        yield _found(case, "cloud-config-refused", told.message, what=what, since=told.at)


# ---- initialisation


def _of_initialization(case: Case) -> Iterator[Finding]:
    evidence = case.evidence
    node = evidence.node
    if not node.provided_node_ip:
        yield from _of_kubelet_flags(case)
    elif case.why_not_ours:
        fault = "of-another" if "ownership." in case.why_not_ours else "of-another-controller"
        yield _found(case, fault, case.why_not_ours, what="another's")
    elif node.initialized:
        yield from _of_machine(case, what="initialized, and its machine does not answer for it")
    else:
        own = tuple(_of_machine(case, what=UNINITIALIZED)) if not evidence.heard else ()
        found = own + tuple(_of_flow(case))
        yield from found or tuple(_of_block(case)) or tuple(_of_services(case))


def _of_kubelet_flags(case: Case) -> Iterator[Finding]:
    node = case.evidence.node
    if not node.initialized:
        yield _found(case, "no-node-ip", "", what=UNINITIALIZED)
    elif not node.spec.provider_id:
        yield _found(case, "kubelet-not-external", "", what=UNASKED)


def _of_machine(case: Case, *, what: str) -> Iterator[Finding]:
    look = case.evidence.look
    if isinstance(look, MachineFault):
        yield _found(case, OF_FAULT[look.kind], _of_fault(look), what=what)


def _of_flow(case: Case) -> Iterator[Finding]:
    """What stands in everybody's way."""
    evidence, flow = case.evidence, case.evidence.flow
    leads = isinstance(flow, FlowSeen) and flow.leading is not None
    lease = evidence.around.leadership
    why = lease.why_nobody_leads(evidence.at) if lease is not None and not leads else ""
    if why:
        yield _found(case, "no-leader", _and_pods(case, why, "watcher"), what=UNINITIALIZED)
    if isinstance(flow, Unknown) and flow.reason.startswith(NATS_SILENT):
        said = flow.reason.removeprefix(NATS_SILENT).lstrip(": ")
        yield _found(case, "nats-silent", _and_pods(case, said, *NATS), what=UNINITIALIZED)
    elif isinstance(flow, Unknown) and not flow.all_in_one and (down := _and_pods(case, "", *NATS)):
        yield _found(case, "nats-silent", down, what=UNINITIALIZED)
    elif isinstance(flow, FlowSeen) and flow.stream is None and not why:
        yield _found(case, "no-stream", "", what=UNINITIALIZED)
    elif isinstance(flow, FlowSeen) and flow.stream and 0 < flow.stream.max_bytes * _FULL < flow.stream.bytes:
        full = f"{flow.stream.bytes} of {flow.stream.max_bytes} bytes"
        yield _found(case, "stream-full", full, what=UNINITIALIZED)


def _of_block(case: Case) -> Iterator[Finding]:
    """What the labeler says, or would say by what is so now, or has written on the Node."""
    evidence, plan = case.evidence, case.plan
    if isinstance(evidence.look, MachineFault):
        yield from _of_machine(case, what=UNINITIALIZED)
        return
    if plan is not None and plan.blocked is not None and plan.blocked.reason in OF_BLOCK:
        yield _found(case, OF_BLOCK[plan.blocked.reason], plan.blocked.message, what=UNINITIALIZED)
        return
    condition = evidence.node.condition(CONDITION_BLOCKED)
    decided = evidence.last_words.of(LABELER.service, evidence.node) if evidence.last_words else None
    if decided is not None and decided.reason.startswith(_WRITING):
        yield _found(case, "write-refused", decided.reason.removeprefix(_WRITING), what=UNINITIALIZED)
    elif condition is not None:
        yield from _of_condition(case, condition)


def _of_condition(case: Case, condition: NodeCondition) -> Iterator[Finding]:
    asked = case.evidence.look is not None
    reasons = OF_BLOCK if asked else {**OF_BLOCK, **_FAULT_OF_REASON}
    fault = reasons.get(condition.reason)
    answered = asked and case.plan is not None and case.plan.blocked is None
    believed = _OF_SERVICES if case.evidence.file else _OF_SERVICES | _OF_THE_FILE
    if fault is None or (answered and fault not in believed):
        return  # it was so, and is not any more
    said = _and_pods(case, condition.message.removeprefix(_WRITING), *_PODS_OF.get(fault, ()))
    yield _found(case, fault, said, what=UNINITIALIZED)


def _of_services(case: Case) -> Iterator[Finding]:
    """Nothing stands in its way, and nobody has taken it up."""
    evidence = case.evidence
    words, node, at = evidence.last_words, evidence.node, evidence.at
    if _age(node.metadata.creation_timestamp, at) < CARRIED_OUT:
        return
    if words is None or words.problem:
        if down := _and_pods(case, "", "metadata"):
            yield _found(case, "metadata-silent", down, what=UNINITIALIZED)
        elif down := _and_pods(case, "", "labeler"):
            yield _found(case, "labeler-silent", down, what=UNINITIALIZED)
        elif _age(node.metadata.creation_timestamp, at) >= JOINED:
            why = "; ".join(filter(None, (evidence.not_asked, words.problem if words else "")))
            yield _found(
                case, "not-told", why or "nobody was asked what the services say", what=UNINITIALIZED
            )
    elif words.observed is None or words.observed.node.uid != node.uid:
        yield _found(
            case, "watcher-silent", _and_pods(case, "it is not in NATS", "watcher"), what=UNINITIALIZED
        )
    elif words.machine_of(node) is None:
        if _age(words.observed.observed_at, at) >= CARRIED_OUT:
            ago = f"the watcher told it {_seconds(words.observed.observed_at, at)} ago"
            yield _found(case, "metadata-silent", _and_pods(case, ago, "metadata"), what=UNINITIALIZED)
    else:
        yield from _of_labeler(case)


def _of_labeler(case: Case) -> Iterator[Finding]:
    evidence = case.evidence
    said = evidence.last_words.machine_of(evidence.node) if evidence.last_words else None
    if said is None or _age(said.enriched_at, evidence.at) < CARRIED_OUT:
        return
    why = f"metadata told it {_seconds(said.enriched_at, evidence.at)} ago"
    flow = evidence.flow
    seen = (
        [one for one in flow.services if one.service == LABELER.service] if isinstance(flow, FlowSeen) else []
    )
    why = "; ".join((why, *(one.why for one in seen if one.why)))
    yield _found(case, "labeler-silent", _and_pods(case, why, "labeler"), what=UNINITIALIZED)


# ---- what comes after


def _of_kubelet(case: Case) -> Iterator[Finding]:
    evidence = case.evidence
    ready = evidence.node.condition("Ready")
    if ready is not None and ready.status == "True":
        return
    if ready is None:
        if _age(evidence.node.metadata.creation_timestamp, evidence.at) >= SOON:
            yield _found(case, "not-ready", "it has told nothing of itself yet", what="not ready")
        return
    said = ": ".join(filter(None, (ready.reason, ready.message))) or f"Ready is {ready.status}"
    fault = "kubelet-silent" if ready.status == "Unknown" else "not-ready"
    what = "not heard of" if fault == "kubelet-silent" else "not ready"
    yield _found(case, fault, said, what=what, since=time_of(ready.last_transition_time))


def _of_pod_cidr(case: Case) -> Iterator[Finding]:
    evidence = case.evidence
    if evidence.node.spec.pod_cidrs:
        return
    words = evidence.last_words
    decided = words.of("ipam", evidence.node) if words else None
    event = evidence.around.event("CIDRNotAvailable", "CIDRAssignmentFailed")
    if decided is not None and decided.outcome == "unserved":
        yield _found(case, "no-pod-cidr", decided.reason, what=WITHOUT_POD_CIDR)
    elif event is not None and (decided is None or decided.decided_at < event.at):
        told = event.message.partition(f"{event.reason}: ")[2] or event.message
        yield _found(case, "no-pod-cidr", told, what=WITHOUT_POD_CIDR)


def _of_certificate(case: Case) -> Iterator[Finding]:
    around, at = case.evidence.around, case.evidence.at
    request = around.request
    if request is None or request.issued:
        return
    filed = request.metadata.creation_timestamp
    what, denied = "without a serving certificate", request.condition("Denied") or request.condition("Failed")
    if denied is not None:
        yield _found(case, "certificate-denied", denied.message or denied.reason, what=what, since=filed)
    elif _age(filed, at) < SOON / 2:
        return
    elif request.condition("Approved") is not None:
        yield _found(case, "certificate-not-signed", "", what=what, since=filed)
    else:
        event = around.event("CSRWaiting")
        own = event is not None and request.name in event.message
        said = event.message if event is not None and own else "csr has not decided it"
        yield _found(case, "certificate-waits", said, what=what, since=filed)


# ---- words

_OF_CLOUD_CONFIG: Final = ("CloudConfigRejected", "CloudConfigAccepted")
NATS: Final = ("nats", "nats-single")  # as the chart labels its pods
NATS_SILENT: Final = "NATS does not tell"
_DIALLING: Final = 'UNAVAILABLE: connection error: desc = "transport: Error while dialing: '
_DENIED: Final = "by Talos Cloud Controller Manager, Reason: "
_FROM_THE_FIRST: Final = frozenset({UNINITIALIZED, UNASKED, WITHOUT_POD_CIDR})
_WRITING: Final = "writing the Node: "
_OF_SERVICES: Final = frozenset({"metadata-silent", "write-refused", "defect"})
_OF_THE_FILE: Final = frozenset({"rule-fails", "no-native-provider-id"})  # which is not known here
_PODS_OF: Final = {"metadata-silent": ("metadata",)}


def _found(case: Case, fault: str, said: str, *, what: str, since: datetime | None = None) -> Finding:
    evidence, words = case.evidence, FAULTS[fault]
    request = evidence.around.request
    if since is None and what in _FROM_THE_FIRST:
        since = evidence.node.metadata.creation_timestamp
    given = {
        "node": evidence.node.name,
        "ip": address_of(evidence),
        "said": _brief(said),
        "namespace": evidence.namespace,
        "csr": request.name if request else "",
    }
    return Finding(
        fault=fault,
        what=what,
        since=since,
        cause=words.cause.format(**given),
        fix=words.fix.format(**given),
    )


def address_of(evidence: Evidence) -> str:
    """Where talosctl finds the machine, as far as its Node says."""
    addresses = evidence.node.status.addresses
    own = next((each.address for each in addresses if each.type == "InternalIP"), "")
    return own or evidence.node.provided_node_ip.partition(",")[0] or evidence.node.name


def time_of(text: str | None) -> datetime | None:
    """A time as Kubernetes writes it; None for what is none."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def _brief(said: str) -> str:
    """Without what Go and csr say before they come to the point."""
    head, found, reason = said.partition(_DIALLING)
    said = head + reason.replace('"', "") if found else said
    said = said.partition(_DENIED)[2] or said
    return said.strip().rstrip(".")


def _of_fault(fault: MachineFault) -> str:
    where = f" at {fault.endpoint}" if fault.endpoint and fault.endpoint not in fault.message else ""
    return f"{fault.step}{where}: {fault.message}"


def _and_pods(case: Case, said: str, *services: str) -> str:
    return "; ".join(filter(None, (said, *case.evidence.around.pods_not_ready(*services))))


def _age(since: datetime | None, at: datetime) -> timedelta:
    return at - since if since is not None else timedelta.max


def _seconds(since: datetime, at: datetime) -> str:
    return f"{max(0, (at - since).total_seconds()):.0f} s"
