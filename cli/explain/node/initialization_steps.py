"""The steps of a Node from its creation to running pods: done at a time, or owed by a component. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec

from cli.explain.node.node_evidence import NodeEvidence
from libs.common.contract.events import NodeUnreachable
from libs.common.contract.services import IPAM, LABELER
from libs.common.contract.timestamp import parse_time

StepState = Literal["done", "owed", "unknown", "none"]


class InitializationStep(msgspec.Struct, frozen=True):
    """One step: done (with its time if known), owed, unknown from here, or not needed."""

    who: str  # the component that does the step
    what: str
    state: StepState
    at: datetime | None = None
    note: str = ""


Steps = Iterator[InitializationStep]


def list_initialization_steps(evidence: NodeEvidence, *, is_foreign: bool) -> Steps:
    """Yield the steps in order. For a foreign Node the labeler owes nothing."""
    node = evidence.node
    yield InitializationStep("kubelet", "Node created", "done", node.metadata.creation_timestamp)
    yield _make_observed_step(evidence)
    yield _make_queried_step(evidence)
    if is_foreign:
        yield InitializationStep("labeler", "not managed", "none", note="another controller manages the Node")
    else:
        yield from _list_write_steps(evidence)
    yield from _list_certificate_steps(evidence)
    yield _make_pod_cidr_step(evidence)
    ready = node.find_condition("Ready")
    if ready is not None and ready.status == "True":
        yield InitializationStep("kubelet", "ready", "done", parse_time(ready.last_transition_time))
    else:
        yield InitializationStep("kubelet", "ready", "owed")


def _make_observed_step(evidence: NodeEvidence) -> InitializationStep:
    if evidence.messages_problem:
        return InitializationStep("watcher", "observed", "unknown")
    if evidence.observed is None:
        return InitializationStep("watcher", "observed", "owed")
    return InitializationStep("watcher", "last observed", "done", evidence.observed.observed_at)


def _make_queried_step(evidence: NodeEvidence) -> InitializationStep:
    event, at, note = evidence.machine_event, None, ""
    state: StepState = "owed"
    if not evidence.node.provided_node_ip:
        state, note = "none", "the Node announces no address"
    elif isinstance(event, NodeUnreachable):
        note = f"attempt {event.attempt} failed at {event.enriched_at:%H:%M:%S}; metadata retries"
    elif event is not None:
        state, at = "done", event.facts.queried_at
    elif evidence.messages_problem:
        state = "unknown"
        if evidence.report is not None:
            note = f"it {'does not answer' if evidence.fault else 'answers'} this command"
    return InitializationStep("metadata", "machine queried", state, at, note)


def _list_write_steps(evidence: NodeEvidence) -> Steps:
    node, decided = evidence.node, evidence.find_decision(LABELER)
    synced = evidence.find_event("Synced")
    event_at = synced.at if synced is not None else None
    is_write = decided is not None and decided.outcome in ("initialized", "updated")
    written_at = decided.decided_at if decided is not None and is_write else event_at
    what = "addresses, labels and providerID written"
    if node.spec.provider_id and node.is_initialized:
        yield InitializationStep("labeler", what, "done", written_at)
    else:
        yield InitializationStep("labeler", what, "owed")
    if not node.is_initialized:
        yield InitializationStep("labeler", "taint removed", "owed")
    elif node.spec.provider_id:
        yield InitializationStep("labeler", "taint removed", "done", event_at or written_at)
    else:
        yield InitializationStep("labeler", "taint removed", "none", note="it has no taint")


def _list_certificate_steps(evidence: NodeEvidence) -> Steps:
    request = evidence.request
    if request is None:
        note = "Kubernetes has no request; it deletes a decided one after an hour"
        yield InitializationStep("kubelet", "certificate requested", "none", note=note)
        return
    filed = request.metadata.creation_timestamp
    yield InitializationStep("kubelet", "certificate requested", "done", filed, request.name)
    for kind in ("Approved", "Denied"):
        if condition := request.find_condition(kind):
            what = f"certificate {kind.lower()}"
            yield InitializationStep("csr", what, "done", condition.last_update_time)
            break
    else:
        yield InitializationStep("csr", "certificate approved", "owed")
    if request.find_condition("Denied") is None:
        yield InitializationStep(
            "signer", "certificate issued", "done" if request.status.is_issued else "owed"
        )


def _make_pod_cidr_step(evidence: NodeEvidence) -> InitializationStep:
    node, decided, what = evidence.node, evidence.find_decision(IPAM), "pod CIDR allocated"
    if node.spec.pod_cidrs:
        at = decided.decided_at if decided is not None and decided.outcome == "allocated" else None
        return InitializationStep("ipam", what, "done", at, ", ".join(node.spec.pod_cidrs))
    event = evidence.find_event("CIDRNotAvailable", "CIDRAssignmentFailed")
    if decided is None and event is None:
        return InitializationStep("ipam", what, "none", note="none allocated, none expected")
    return InitializationStep("ipam", what, "owed")
