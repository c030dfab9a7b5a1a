"""Decides the next step for one CSR from its state and its Node: publish, poll, dial, wait, or done."""

from datetime import datetime
from typing import Final

import msgspec

from libs.common.contract.events import CsrEnriched, CsrGone, EnrichedCsr, EnrichedCsrGone
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION
from libs.common.contract.signing_request import SigningRequest
from services.metadata.core.contested_addresses import lacks_requested_address
from services.metadata.core.dial_targets import STEP
from services.metadata.core.node_state import NodeState
from services.metadata.core.object_state import NEVER, ForgetObject, Publish, Wait
from services.metadata.core.request_state import RequestState

FACTS_SECONDS: Final = 60.0  # age of the facts for an undecided request at most
NO_NODE_WAIT_SECONDS: Final = 1.0  # a Node and its first request arrive together, in either order
_NOT_QUERIED: Final = MachineFault(
    kind="bad_node_ip",
    step=STEP,
    message=f"the Node has no annotation {PROVIDED_NODE_IP_ANNOTATION}: metadata does not query its machine",
)


class PollNode(msgspec.Struct, frozen=True):
    """Poll the machine of the Node now."""


class DialBack(msgspec.Struct, frozen=True):
    """Find the contested addresses of these facts and dial them."""

    request: SigningRequest
    facts: MachineFacts
    node_uid: str


RequestStep = Publish[EnrichedCsr] | PollNode | DialBack | Wait | ForgetObject


class Attestation(msgspec.Struct, frozen=True, kw_only=True):
    """The facts for the request, or the fault that explains why there are none; neither without a machine."""

    node_uid: str = ""
    facts: MachineFacts | None = None
    fault: MachineFault | None = None
    without_talos: bool = False


def decide_request_step(
    state: RequestState,
    node: NodeState | None,
    *,
    without_talos: bool,
    is_superseded: bool = False,
    now: float,
    wall_time: datetime,
) -> RequestStep:
    """Return the next step. `node` is the state of the requesting Node.

    `now` is monotonic; `wall_time` is the same moment as wall clock time. `is_superseded`: the requester has
    a newer pending request. Only the newest one gets facts: they are large, and csr decides only that one.
    """
    if state.observation.is_stale:
        return Wait(NEVER)
    if isinstance(state.observation.event, CsrGone):
        gone = _build_gone(state, state.observation.event)
        return _publish_if_due(state, gone, now) or ForgetObject()
    if state.pending_request is None:
        return ForgetObject()
    if not without_talos and not is_superseded and node is not None and needs_poll(state, node, now=now):
        return PollNode()
    if is_superseded and not without_talos:
        found: Attestation | Wait = Attestation()
    else:
        found = attest(state, node, without_talos=without_talos, now=now)
    if isinstance(found, Wait):
        return found
    event = _build_enriched(state, state.pending_request, found, wall_time)
    publish = _publish_if_due(state, event, now)
    if publish is not None:
        return publish
    republish_at = state.publication.republish_at
    if found.facts is None or node is None:
        return Wait(republish_at)
    if state.dialled_facts is not found.facts or now >= state.next_dial_at:
        return DialBack(state.pending_request, found.facts, found.node_uid)
    return Wait(min(republish_at, state.next_dial_at, _next_requested_poll_at(state, node, now)))


def attest(
    state: RequestState, node: NodeState | None, *, without_talos: bool, now: float
) -> Attestation | Wait:
    """Return the attestation for the request, or Wait while a poll may soon provide it."""
    if without_talos:
        return Attestation(without_talos=True)
    if node is None or node.node is None:
        deadline = state.first_seen_at + NO_NODE_WAIT_SECONDS
        return Attestation() if now >= deadline or state.publication.event is not None else Wait(deadline)
    if node.observation.is_stale:
        return Wait(NEVER)
    if node.facts is not None and node.facts is state.oversized_facts:
        fault = MachineFault(kind="invalid", step="facts", message="the facts make the message too large")
        return Attestation(node_uid=node.uid, fault=fault)
    if node.facts is not None:
        return Attestation(node_uid=node.uid, facts=node.facts) if is_fresh(state, node) else Wait(NEVER)
    fault_or_none = node.fault or (None if node.dial_targets else _NOT_QUERIED)
    return Attestation(node_uid=node.uid, fault=fault_or_none) if fault_or_none else Wait(NEVER)


def is_fresh(state: RequestState, node: NodeState) -> bool:
    """Return whether the facts prove something for this request.

    They do if they are recent enough, or if a live watch has reported no change since the poll.
    """
    return node.polled_at >= state.fresh_from or (
        node.is_watched and node.machine_changed_at < node.polled_at
    )


def needs_poll(state: RequestState, node: NodeState, *, now: float) -> bool:
    """Return whether the request needs a poll that is not due anyway.

    Old facts prove nothing, but a live watch causes a poll by itself. Without a watch, a request that stays
    undecided causes polls while another report of its machine may end its wait, and when the last poll is a
    minute old: csr may approve as soon as its wait ends, and an address may have moved since.
    """
    if not _may_request_poll(node, now):
        return False
    if not is_fresh(state, node):
        return True
    if now < state.next_poll_request_at:
        return False
    return now >= node.polled_at + FACTS_SECONDS or _may_wait_for_machine(state, node)


def _next_requested_poll_at(state: RequestState, node: NodeState, now: float) -> float:
    """Return when a request needs a poll that it does not need now."""
    if not _may_request_poll(node, now):
        return NEVER
    return state.next_poll_request_at if now < state.next_poll_request_at else node.polled_at + FACTS_SECONDS


def _may_wait_for_machine(state: RequestState, node: NodeState) -> bool:
    """Return whether csr may wait for something that the machine has not reported yet.

    Else csr waits for something else, or has a backlog. The polls of all its requests would prolong that.
    """
    request, facts = state.pending_request, node.facts
    if request is None or facts is None:
        return False
    return facts.node_name != request.node_name or lacks_requested_address(request, facts)


def _may_request_poll(node: NodeState, now: float) -> bool:
    """Return whether a poll can be requested. A poll that is due anyway wakes the request with its result."""
    return (
        bool(node.dial_targets)
        and node.next_poll_at > now
        and not node.is_watched
        and not node.observation.is_stale
    )


def _publish_if_due(
    state: RequestState, event: EnrichedCsr, now: float
) -> Publish[EnrichedCsr] | Wait | None:
    """Return Publish, or Wait during a back-off; None if this event need not be published now."""
    if not state.publication.is_due(event, now):
        return None
    retry_at = state.publication.retry_at
    return Publish(event) if now >= retry_at else Wait(retry_at)


def _build_gone(state: RequestState, observed: CsrGone) -> EnrichedCsrGone:
    return EnrichedCsrGone(
        stream_id=observed.stream_id,
        observed_sequence=state.observation.sequence,
        name=observed.name,
        uid=observed.uid,
    )


def _build_enriched(
    state: RequestState, request: SigningRequest, attestation: Attestation, wall_time: datetime
) -> CsrEnriched:
    observed = state.observation
    return CsrEnriched(
        stream_id=observed.event.stream_id,
        observed_sequence=observed.sequence,
        request=request,
        node_uid=attestation.node_uid,
        facts=attestation.facts,
        answering_addresses=_select_answering(state, request, attestation),
        fault=attestation.fault,
        without_talos=attestation.without_talos,
        observed_at=observed.event.observed_at,
        enriched_at=wall_time,
    )


def _select_answering(state: RequestState, request: SigningRequest, found: Attestation) -> tuple[str, ...]:
    """Return the addresses at which the machine with the requested node name answered.

    A machine verified by system UUID has another node name, so its answers prove no name.
    """
    facts = found.facts
    if facts is None or facts.node_name != request.node_name:
        return ()
    dialled = state.answering_addresses if state.dialled_node_uid == found.node_uid else frozenset()
    return (facts.node_ip, *sorted(dialled - {facts.node_ip}))
