"""What is wrong with a Node, why, and what mends it: the first thing that is told. Pure."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final, Literal

import msgspec

from cli.explain.node.evidence import Evidence
from cli.explain.node.finding import WITHOUT_POD_CIDR, Case, Finding, age, found, time_of
from cli.explain.node.uninitialized import of_initialization

State = Literal["well", "moving", "stuck", "another's", "unknown"]

SOON: Final = timedelta(seconds=60)  # a kubelet's start, a request for a certificate
_OF_OTHERS: Final = frozenset({"of-another", "of-another-controller", "of-whom-is-not-known"})
_OF_CLOUD_CONFIG: Final = ("CloudConfigRejected", "CloudConfigAccepted")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The findings in the order in which they are to be mended."""

    state: State
    findings: tuple[Finding, ...] = ()


def judge(case: Case) -> Verdict:
    """All that is wrong; the state, if nothing is."""
    findings = tuple(_findings(case))
    evidence = case.evidence
    faults = {one.fault for one in findings}
    if faults and faults <= _OF_OTHERS and evidence.node.is_initialized:
        return Verdict(state="another's", findings=findings)
    if faults:
        return Verdict(state="unknown" if "not-told" in faults else "stuck", findings=findings)
    owed = case.plan is not None and bool(case.plan.changes.provider_id)
    is_done = evidence.node.is_initialized and not owed and not is_starting(evidence)
    return Verdict(state="well" if is_done else "moving")


def is_starting(evidence: Evidence) -> bool:
    """Whether its kubelet has just registered, and may yet become ready: it waits for a CNI, as a rule."""
    ready = evidence.node.find_condition("Ready")
    may = ready is None or ready.status == "False"
    return may and age(evidence.node.metadata.creation_timestamp, evidence.at) < SOON


def _findings(case: Case) -> Iterator[Finding]:
    node = case.evidence.node
    if node.metadata.deletion_timestamp is not None:
        held = f"since {node.metadata.deletion_timestamp:%Y-%m-%d %H:%M:%S} UTC"
        yield found(case, "being-deleted", held, what="being deleted", since=node.metadata.deletion_timestamp)
        return
    yield from of_initialization(case)
    if case.mismatch:
        yield found(case, "provider-id", case.mismatch, what="under another providerID")
    yield from _of_kubelet(case)
    yield from _of_pod_cidr(case)
    yield from _of_certificate(case)
    yield from _of_file(case)


def _of_file(case: Case) -> Iterator[Finding]:
    evidence, what = case.evidence, "under old rules, or none"
    told = next((each for each in evidence.around.of_cluster if each.reason in _OF_CLOUD_CONFIG), None)
    if evidence.file_mistakes:
        yield found(case, "cloud-config-refused", evidence.file_mistakes, what=what)
    elif told is not None and told.reason == "CloudConfigRejected":
        yield found(case, "cloud-config-refused", told.message, what=what, since=told.at)


def _of_kubelet(case: Case) -> Iterator[Finding]:
    evidence = case.evidence
    ready = evidence.node.find_condition("Ready")
    if (ready is not None and ready.status == "True") or is_starting(evidence):
        return
    if ready is None:
        yield found(case, "not-ready", "it has told nothing of itself yet", what="not ready")
        return
    said = ": ".join(filter(None, (ready.reason, ready.message))) or f"Ready is {ready.status}"
    fault = "kubelet-silent" if ready.status == "Unknown" else "not-ready"
    what = "not heard of" if fault == "kubelet-silent" else "not ready"
    yield found(case, fault, said, what=what, since=time_of(ready.last_transition_time))


def _of_pod_cidr(case: Case) -> Iterator[Finding]:
    evidence = case.evidence
    if evidence.node.spec.pod_cidrs:
        return
    words = evidence.last_words
    decided = words.of("ipam", evidence.node) if words else None
    event = evidence.around.event("CIDRNotAvailable", "CIDRAssignmentFailed")
    if decided is not None and decided.outcome == "unserved":
        yield found(case, "no-pod-cidr", decided.reason, what=WITHOUT_POD_CIDR)
    elif event is not None and (decided is None or decided.decided_at < event.at):
        told = event.message.partition(f"{event.reason}: ")[2] or event.message
        yield found(case, "no-pod-cidr", told, what=WITHOUT_POD_CIDR)


def _of_certificate(case: Case) -> Iterator[Finding]:
    around, at = case.evidence.around, case.evidence.at
    request = around.request
    if request is None or request.issued:
        return
    filed = request.metadata.creation_timestamp
    what, denied = "without a serving certificate", request.condition("Denied") or request.condition("Failed")
    if denied is not None:
        yield found(case, "certificate-denied", denied.message or denied.reason, what=what, since=filed)
    elif age(filed, at) < SOON / 2:
        return
    elif request.condition("Approved") is not None:
        yield found(case, "certificate-not-signed", "", what=what, since=filed)
    else:
        event = around.event("CSRWaiting")
        own = event is not None and request.name in event.message
        said = event.message if event is not None and own else "csr has not decided it"
        yield found(case, "certificate-waits", said, what=what, since=filed)
