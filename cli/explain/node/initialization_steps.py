"""The steps of a Node from its creation to running pods: done at a time, or owed by a component. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec

from cli.cluster.described_node import DescribedNode
from cli.explain.node.node_evidence import NodeEvidence
from libs.common.contract.events import NodeUnreachable
from libs.common.contract.machine import MachineFault
from libs.common.contract.services import IPAM, LABELER
from libs.common.contract.timestamp import parse_time

StepState = Literal["done", "owed", "unknown", "none"]


class InitializationStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step: done (with its time if known), owed, unknown from here, or not needed."""

    who: str  # the component that does the step
    what: str
    state: StepState = msgspec.field(name="standing")
    at: datetime | None = None
    note: str = ""


def list_initialization_steps(evidence: NodeEvidence, *, is_foreign: bool) -> tuple[InitializationStep, ...]:
    """Return the steps in order. For a foreign Node the labeler owes nothing."""
    return tuple(_list_steps(evidence, is_anothers=is_foreign))


def _list_steps(evidence: NodeEvidence, *, is_anothers: bool) -> Iterator[InitializationStep]:
    node = evidence.node
    created = node.metadata.creation_timestamp
    yield InitializationStep(who="kubelet", what="Node created", state="done", at=created)
    yield _make_observed_step(evidence)
    yield _make_queried_step(evidence)
    if is_anothers:
        yield InitializationStep(
            who=LABELER.service, what="not managed", state="none", note="another controller manages the Node"
        )
    else:
        yield from _list_write_steps(evidence)
    yield from _list_certificate_steps(evidence)
    yield _make_pod_cidr_step(evidence)
    ready = node.find_condition("Ready")
    is_ready = ready is not None and ready.status == "True"
    yield InitializationStep(
        who="kubelet",
        what="ready",
        state="done" if is_ready else "owed",
        at=parse_time(ready.last_transition_time) if ready is not None and is_ready else None,
    )


def _make_observed_step(evidence: NodeEvidence) -> InitializationStep:
    words = evidence.last_messages
    if words is None or words.problem:
        return InitializationStep(who="watcher", what="observed", state="unknown")
    seen = words.observed
    if seen is None or seen.node.uid != evidence.node.uid:
        return InitializationStep(who="watcher", what="observed", state="owed")
    return InitializationStep(who="watcher", what="last observed", state="done", at=seen.observed_at)


def _make_queried_step(evidence: NodeEvidence) -> InitializationStep:
    node, words, what = evidence.node, evidence.last_messages, "machine queried"
    if not node.provided_node_ip:
        return InitializationStep(
            who="metadata", what=what, state="none", note="the Node announces no address"
        )
    said = words.find_machine_event(node) if words is not None else None
    if isinstance(said, NodeUnreachable):
        note = f"attempt {said.attempt} failed at {said.enriched_at:%H:%M:%S}; metadata retries"
        return InitializationStep(who="metadata", what=what, state="owed", note=note)
    if said is not None:
        return InitializationStep(who="metadata", what=what, state="done", at=said.facts.queried_at)
    if words is not None and not words.problem:
        return InitializationStep(who="metadata", what=what, state="owed")
    if isinstance(evidence.machine_result, DescribedNode | MachineFault):
        verb = "does not answer" if isinstance(evidence.machine_result, MachineFault) else "answers"
        note = f"it {verb} this command"
        return InitializationStep(who="metadata", what=what, state="unknown", note=note)
    return InitializationStep(who="metadata", what=what, state="unknown")


def _list_write_steps(evidence: NodeEvidence) -> Iterator[InitializationStep]:
    node, words = evidence.node, evidence.last_messages
    decided = words.find_decision(LABELER.service, node) if words is not None else None
    synced = evidence.context.find_event("Synced")
    at = decided.decided_at if decided is not None and decided.outcome in ("initialized", "updated") else None
    at = synced.at if at is None and synced is not None else at
    written = bool(node.spec.provider_id) and node.is_initialized
    yield InitializationStep(
        who=LABELER.service,
        what="addresses, labels and providerID written",
        state="done" if written else "owed",
        at=at if written else None,
    )
    at = synced.at if synced is not None else at
    never = node.is_initialized and not node.spec.provider_id
    yield InitializationStep(
        who=LABELER.service,
        what="taint removed",
        state="none" if never else "done" if node.is_initialized else "owed",
        at=at if node.is_initialized and not never else None,
        note="it has no taint" if never else "",
    )


def _list_certificate_steps(evidence: NodeEvidence) -> Iterator[InitializationStep]:
    request = evidence.context.request
    if request is None:
        note = "Kubernetes has no request; it deletes a decided one after an hour"
        yield InitializationStep(who="kubelet", what="certificate requested", state="none", note=note)
        return
    filed = request.metadata.creation_timestamp
    yield InitializationStep(
        who="kubelet", what="certificate requested", state="done", at=filed, note=request.name
    )
    for kind, word in (("Approved", "approved"), ("Denied", "denied")):
        if condition := request.find_condition(kind):
            yield InitializationStep(
                who="csr", what=f"certificate {word}", state="done", at=condition.last_update_time
            )
            break
    else:
        yield InitializationStep(who="csr", what="certificate approved", state="owed")
    if request.find_condition("Denied") is None:
        standing: StepState = "done" if request.is_issued else "owed"
        yield InitializationStep(who="signer", what="certificate issued", state=standing)


def _make_pod_cidr_step(evidence: NodeEvidence) -> InitializationStep:
    node, words = evidence.node, evidence.last_messages
    decided = words.find_decision(IPAM.service, node) if words is not None else None
    if node.spec.pod_cidrs:
        at = decided.decided_at if decided is not None and decided.outcome == "allocated" else None
        note = ", ".join(node.spec.pod_cidrs)
        return InitializationStep(who=IPAM.service, what="pod CIDR allocated", state="done", at=at, note=note)
    event = evidence.context.find_event("CIDRNotAvailable", "CIDRAssignmentFailed")
    if decided is None and event is None:
        return InitializationStep(
            who=IPAM.service, what="pod CIDR allocated", state="none", note="none allocated, none expected"
        )
    return InitializationStep(who=IPAM.service, what="pod CIDR allocated", state="owed")
