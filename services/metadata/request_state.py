"""The state of one kubelet's CSR in metadata, and its transitions.

All times are monotonic seconds of this process: no decision depends on the clock of another machine.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.bus.delivery import backoff_seconds, exponential_step
from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrEnriched, CsrGone, CsrObserved, EnrichedCsr, EnrichedCsrGone
from libs.common.contract.machine import MachineFacts
from libs.common.contract.signing_request import SigningRequest, is_same_request
from services.metadata import poll_schedule
from services.metadata.node_state import LONG_AGO, NEVER
from services.metadata.node_step import has_same_facts
from services.metadata.poll_schedule import PollIntervals

FRESHNESS_SECONDS: Final = 10.0  # how much older than the request a poll may be
_POLL_FIRST_SECONDS: Final = 10.0  # after published facts that led to no decision
_POLL_CAP_SECONDS: Final = 60.0


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """All data about one request, except the state of its Node."""

    observation: CsrObserved | CsrGone  # the newest observation
    observed_sequence: int  # its sequence in the stream
    trace_headers: Mapping[str, str] = {}  # its trace context
    first_resource_version: int = 0  # the request's resourceVersion when first received
    first_seen_at: float  # when metadata first received the request; the watcher observed it earlier
    fresh_from: float  # a poll that began earlier proves nothing
    is_answered: bool = False  # a message was published since the observation arrived
    is_stale: bool = False  # it is from a lost stream; the present one does not have the request yet

    published: EnrichedCsr | None = None  # the last message of this replica or another one
    republish_at: float = NEVER  # when it is published again, unchanged
    requested_polls: int = 0  # requested because the published facts led to no decision
    next_poll_request_at: float  # when the next such poll is due
    publish_failures: int = 0  # in a row
    publish_after: float = LONG_AGO
    oversized_facts: MachineFacts | None = None  # facts that make the message too large

    # contested addresses at which the Node's own machine answered
    answering_addresses: frozenset[str] = frozenset()
    dialled_facts: MachineFacts | None = None  # the facts that attested them
    dialled_node_uid: str = ""  # the Node's uid at the time of the dial
    next_dial_at: float = LONG_AGO  # when to check again for contested addresses

    @property
    def uid(self) -> str:
        return get_uid(self.observation)

    @property
    def pending_request(self) -> SigningRequest | None:
        """The request while it needs an attestation; None if it is decided, gone or not a kubelet's."""
        request = self.observation.request if isinstance(self.observation, CsrObserved) else None
        return request if request is not None and needs_attestation(request) else None

    @property
    def node_name(self) -> str:
        """The name of the requesting Node, "" once the request is gone."""
        return self.observation.request.node_name if isinstance(self.observation, CsrObserved) else ""


def needs_attestation(request: SigningRequest) -> bool:
    """Return whether the request is a pending kubelet serving request, which needs facts of the machine."""
    return request.is_kubelet_serving and request.is_pending


def is_superseded_by(one: RequestState, other: RequestState) -> bool:
    """Return whether `other` is a newer pending request of the same requester: csr decides only the newest.

    csr orders requests by the resourceVersion at which it first received each. A later write to a request
    makes that version larger for a replica that starts later, so only a clear order counts.
    """
    mine, theirs = one.pending_request, other.pending_request
    if mine is None or theirs is None or other.is_stale or mine.uid == theirs.uid:
        return False
    if (mine.node_name, mine.is_requested_by_node) != (theirs.node_name, theirs.is_requested_by_node):
        return False
    return mine.resource_version_number < other.first_resource_version and _created(mine) <= _created(theirs)


def _created(request: SigningRequest) -> float:
    created = request.metadata.creation_timestamp
    return created.timestamp() if created is not None else 0.0


def get_uid(event: CsrObserved | CsrGone) -> str:
    """Return the uid of the observed request."""
    return event.uid if isinstance(event, CsrGone) else event.request.uid


def create_state(
    message: Message,
    observed: CsrObserved | CsrGone,
    stored: EnrichedCsr | None,
    *,
    republish_in: float,
    now: float,
) -> RequestState:
    """Return the state of a new request. Its `stored` message is republished in `republish_in` seconds."""
    return RequestState(
        observation=observed,
        observed_sequence=message.sequence,
        trace_headers=message.headers,
        first_resource_version=observed.request.resource_version_number
        if isinstance(observed, CsrObserved)
        else 0,
        first_seen_at=now,
        fresh_from=now - FRESHNESS_SECONDS,
        published=stored,
        republish_at=now + republish_in,
        next_poll_request_at=now + _delay_until_poll(0),
    )


def apply_observation(
    state: RequestState,
    message: Message,
    observed: CsrObserved | CsrGone,
    *,
    now: float,
    intervals: PollIntervals,
) -> RequestState:
    """Return the state after a newer observation. Another uid is another request and starts a new state."""
    if get_uid(observed) != state.uid:
        return create_state(message, observed, state.published, republish_in=intervals.republish, now=now)
    if message.sequence <= state.observed_sequence and not state.is_stale:
        return state  # a replay after the connection was lost
    return msgspec.structs.replace(
        state,
        observation=observed,
        observed_sequence=message.sequence,
        trace_headers=message.headers,
        is_answered=False,
        is_stale=False,
        publish_after=LONG_AGO if isinstance(observed, CsrGone) else state.publish_after,
    )


def mark_stale(state: RequestState) -> RequestState:
    """Forget the published message and sequence, which are lost with the old stream."""
    return msgspec.structs.replace(
        state, is_stale=True, published=None, republish_at=NEVER, observed_sequence=0
    )


def mark_unpublished(state: RequestState) -> RequestState:
    """Forget the published message, which the stream lost. Keep the observation."""
    return (
        state
        if state.published is None
        else msgspec.structs.replace(state, published=None, republish_at=NEVER)
    )


# ---- publish results


def apply_published(
    state: RequestState, event: EnrichedCsr, *, now: float, intervals: PollIntervals, jitter: float
) -> RequestState:
    """Return the state after a publish. A repeated message does not delay the next requested poll."""
    is_repetition = state.published is not None and is_equivalent(state.published, event)
    return msgspec.structs.replace(
        state,
        published=event,
        republish_at=now + poll_schedule.delay_until_republish(intervals, jitter),
        next_poll_request_at=state.next_poll_request_at
        if is_repetition
        else now + _delay_until_poll(state.requested_polls),
        is_answered=event.observed_sequence >= state.observed_sequence,
        publish_failures=0,
        publish_after=LONG_AGO,
    )


def apply_publish_failure(state: RequestState, *, now: float, jitter: float) -> RequestState:
    """Return the state after a failed publish, with back-off."""
    wait = backoff_seconds(state.publish_failures + 1, jitter)
    return msgspec.structs.replace(
        state, publish_failures=state.publish_failures + 1, publish_after=now + wait
    )


def apply_bus_reconnect(state: RequestState, *, now: float, jitter: float) -> RequestState:
    """End the publish back-off: `jitter` in [0, 1) spreads the retries over a second."""
    return (
        msgspec.structs.replace(state, publish_failures=0, publish_after=now + jitter)
        if state.publish_failures
        else state
    )


def apply_oversized_message(state: RequestState, event: EnrichedCsr) -> RequestState:
    """Publish again without the facts. A message that has none and is still too large is never published."""
    facts = event.facts if isinstance(event, CsrEnriched) else None
    return msgspec.structs.replace(
        state,
        oversized_facts=facts or state.oversized_facts,
        publish_after=LONG_AGO if facts is not None else NEVER,
    )


def apply_publish_conflict(
    state: RequestState, mine: EnrichedCsr, theirs: EnrichedCsr | None, *, now: float
) -> RequestState:
    """Resolve a tie with another replica's message about the same observation.

    The message with more data wins. If both have facts but differ, a new poll decides.
    """
    if theirs is None or _count_answers(theirs) < _count_answers(mine):
        return msgspec.structs.replace(state, published=theirs)
    if not isinstance(mine, CsrEnriched) or mine.facts is None or _has_as_much(mine, theirs):
        return msgspec.structs.replace(state, published=mine)
    return msgspec.structs.replace(state, published=theirs, fresh_from=now)


def apply_stored(state: RequestState, theirs: EnrichedCsr) -> RequestState:
    """Apply another replica's newer message. If it has less data than ours, ours is published again."""
    if state.published is None or _count_answers(theirs) < _count_answers(state.published):
        return msgspec.structs.replace(state, published=theirs)
    return state


def is_equivalent(one: EnrichedCsr, other: EnrichedCsr) -> bool:
    """Return whether two events mean the same to consumers, apart from times, order and counts."""
    match one, other:
        case CsrEnriched(), CsrEnriched():
            same = (one.node_uid, one.answering_addresses, one.without_talos) == (
                other.node_uid,
                other.answering_addresses,
                other.without_talos,
            )
            return (
                same
                and _fault_key(one) == _fault_key(other)
                and has_same_facts(one.facts, other.facts)
                and is_same_request(one.request, other.request)
            )
        case EnrichedCsrGone(), EnrichedCsrGone():
            return one.uid == other.uid
        case _:
            return False


def _has_as_much(mine: CsrEnriched, theirs: EnrichedCsr) -> bool:
    """Return whether `theirs` equals `mine`, apart from addresses that only the other replica has dialled."""
    if not isinstance(theirs, CsrEnriched) or not set(theirs.answering_addresses) >= set(
        mine.answering_addresses
    ):
        return False
    return is_equivalent(
        msgspec.structs.replace(mine, answering_addresses=theirs.answering_addresses), theirs
    )


def _fault_key(event: CsrEnriched) -> tuple[str, str]:
    return (event.fault.kind, event.fault.step) if event.fault else ("", "")


def _count_answers(event: EnrichedCsr) -> int:
    if isinstance(event, EnrichedCsrGone):
        return 3
    return 2 if event.facts is not None else 1 if event.fault is not None else 0


# ---- polls and dials


def apply_poll_requested(state: RequestState, *, now: float) -> RequestState:
    """Count a requested poll and set when the next one is due, if this one leads to no decision."""
    if now < state.next_poll_request_at:
        return state
    polls = state.requested_polls + 1
    return msgspec.structs.replace(
        state, requested_polls=polls, next_poll_request_at=now + _delay_until_poll(polls)
    )


def apply_dial_started(state: RequestState, facts: MachineFacts, node_uid: str) -> RequestState:
    """Start a dial for these facts. Earlier answers for the same Node uid hold until its result."""
    previous = state.answering_addresses if state.dialled_node_uid == node_uid else frozenset()
    return msgspec.structs.replace(
        state,
        answering_addresses=previous,
        dialled_facts=facts,
        dialled_node_uid=node_uid,
        next_dial_at=NEVER,
    )


def apply_dial_result(state: RequestState, answering: frozenset[str], *, again_at: float) -> RequestState:
    """Set the contested addresses at which the Node's own machine answered."""
    return msgspec.structs.replace(state, answering_addresses=answering, next_dial_at=again_at)


def _delay_until_poll(requested_polls: int) -> float:
    return exponential_step(requested_polls + 1, first=_POLL_FIRST_SECONDS, cap=_POLL_CAP_SECONDS)
