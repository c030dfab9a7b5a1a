"""The way of a Node from its kubelet's first word to pods: each step with its time, or who owes it. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec

from cli.explain.node.evidence import Evidence
from cli.explain.node.finding import time_of
from cli.render.described import DescribedNode
from libs.common.events import NodeUnreachable
from libs.common.machine import MachineFault
from libs.common.service_spec import IPAM, LABELER

Standing = Literal["done", "owed", "unknown", "none"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step: done, at a time if that is known; owed by somebody; not known from here; or not wanted."""

    who: str  # does it, or owes it
    what: str
    standing: Standing
    at: datetime | None = None
    note: str = ""


def journey(evidence: Evidence, *, is_anothers: bool) -> tuple[Step, ...]:
    """In the order in which it goes; of a Node that is another's, the labeler owes nothing."""
    return tuple(_steps(evidence, is_anothers=is_anothers))


def _steps(evidence: Evidence, *, is_anothers: bool) -> Iterator[Step]:
    node = evidence.node
    created = node.metadata.creation_timestamp
    yield Step(who="kubelet", what="Node created", standing="done", at=created)
    yield _observed(evidence)
    yield _asked(evidence)
    if is_anothers:
        yield Step(who=LABELER.service, what="left alone", standing="none", note="the Node is another's")
    else:
        yield from _written(evidence)
    yield from _certificate(evidence)
    yield _pod_cidr(evidence)
    ready = node.find_condition("Ready")
    is_ready = ready is not None and ready.status == "True"
    yield Step(
        who="kubelet",
        what="ready",
        standing="done" if is_ready else "owed",
        at=time_of(ready.last_transition_time) if ready is not None and is_ready else None,
    )


def _observed(evidence: Evidence) -> Step:
    words = evidence.last_words
    if words is None or words.problem:
        return Step(who="watcher", what="observed", standing="unknown")
    seen = words.observed
    if seen is None or seen.node.uid != evidence.node.uid:
        return Step(who="watcher", what="observed", standing="owed")
    return Step(who="watcher", what="observed, the last time", standing="done", at=seen.observed_at)


def _asked(evidence: Evidence) -> Step:
    node, words, what = evidence.node, evidence.last_words, "its machine asked, and answered"
    if not node.provided_node_ip:
        return Step(who="metadata", what=what, standing="none", note="its Node names no address to ask at")
    said = words.machine_of(node) if words is not None else None
    if isinstance(said, NodeUnreachable):
        note = f"no answer at try {said.attempt}, {said.enriched_at:%H:%M:%S}; tried again by itself"
        return Step(who="metadata", what=what, standing="owed", note=note)
    if said is not None:
        return Step(who="metadata", what=what, standing="done", at=said.facts.queried_at)
    if words is not None and not words.problem:
        return Step(who="metadata", what=what, standing="owed")
    if isinstance(evidence.look, DescribedNode | MachineFault):
        note = "from here it " + ("does not" if isinstance(evidence.look, MachineFault) else "answers")
        return Step(who="metadata", what=what, standing="unknown", note=note)
    return Step(who="metadata", what=what, standing="unknown")


def _written(evidence: Evidence) -> Iterator[Step]:
    node, words = evidence.node, evidence.last_words
    decided = words.of(LABELER.service, node) if words is not None else None
    synced = evidence.around.event("Synced")
    at = decided.decided_at if decided is not None and decided.outcome in ("initialized", "updated") else None
    at = synced.at if at is None and synced is not None else at
    written = bool(node.spec.provider_id) and node.is_initialized
    yield Step(
        who=LABELER.service,
        what="addresses, labels and providerID written",
        standing="done" if written else "owed",
        at=at if written else None,
    )
    at = synced.at if synced is not None else at
    never = node.is_initialized and not node.spec.provider_id
    yield Step(
        who=LABELER.service,
        what="taint removed",
        standing="none" if never else "done" if node.is_initialized else "owed",
        at=at if node.is_initialized and not never else None,
        note="it bears none" if never else "",
    )


def _certificate(evidence: Evidence) -> Iterator[Step]:
    request = evidence.around.request
    if request is None:
        note = "Kubernetes holds no request of it, which it does for an hour"
        yield Step(who="kubelet", what="certificate requested", standing="none", note=note)
        return
    filed = request.metadata.creation_timestamp
    yield Step(who="kubelet", what="certificate requested", standing="done", at=filed, note=request.name)
    for kind, word in (("Approved", "approved"), ("Denied", "denied")):
        if condition := request.condition(kind):
            yield Step(who="csr", what=f"certificate {word}", standing="done", at=condition.last_update_time)
            break
    else:
        yield Step(who="csr", what="certificate approved", standing="owed")
    if request.condition("Denied") is None:
        standing: Standing = "done" if request.issued else "owed"
        yield Step(who="signer", what="certificate issued", standing=standing)


def _pod_cidr(evidence: Evidence) -> Step:
    node, words = evidence.node, evidence.last_words
    decided = words.of(IPAM.service, node) if words is not None else None
    if node.spec.pod_cidrs:
        at = decided.decided_at if decided is not None and decided.outcome == "allocated" else None
        note = ", ".join(node.spec.pod_cidrs)
        return Step(who=IPAM.service, what="pod CIDR given", standing="done", at=at, note=note)
    event = evidence.around.event("CIDRNotAvailable", "CIDRAssignmentFailed")
    if decided is None and event is None:
        return Step(
            who=IPAM.service, what="pod CIDR given", standing="none", note="it has none, nor is one owed"
        )
    return Step(who=IPAM.service, what="pod CIDR given", standing="owed")
