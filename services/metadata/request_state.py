"""What metadata knows of one kubelet's request for a certificate, and how that changes.

Times are monotonic seconds that we noted ourselves: no clock of another machine takes part in a judgement.
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

FRESHNESS_SECONDS: Final = 10.0  # how much older than the request a look may be
_POLL_FIRST_SECONDS: Final = 10.0  # after facts were said that have not led to a decision
_POLL_CAP_SECONDS: Final = 60.0


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one request, but what is known of its Node."""

    observation: CsrObserved | CsrGone  # the newest observation
    observed_sequence: int  # its place in the stream
    trace_headers: Mapping[str, str] = {}  # its trace context
    first_resource_version: int = 0  # the request's resourceVersion when we first heard of it
    first_seen_at: float  # when we first heard of this request: it had been observed by then
    fresh_from: float  # a look that began before proves nothing
    is_answered: bool = False  # something was said since the newest observation came
    is_stale: bool = False  # it is of a stream that is no more; the present one has not named the request yet

    published: EnrichedCsr | None = None  # what we, or our predecessor, said last
    republish_at: float = NEVER  # when it is said again, unchanged
    requested_polls: int = 0  # asked for because what was said has not led to a decision
    next_poll_request_at: float  # when the next of them is
    publish_failures: int = 0  # in a row, refusals of the bus
    publish_after: float = LONG_AGO
    oversized_facts: MachineFacts | None = None  # with these facts the message is larger than any may be

    answering_addresses: frozenset[str] = (
        frozenset()
    )  # contested addresses at which the Node's own machine answered
    dialled_facts: MachineFacts | None = None  # which facts had attested them
    dialled_node_uid: str = ""  # of the Node that it was then
    next_dial_at: float = LONG_AGO  # when it is judged again whether to dial

    @property
    def uid(self) -> str:
        return get_uid(self.observation)

    @property
    def pending_request(self) -> SigningRequest | None:
        """The request while nobody has decided it; None when it is decided, gone, or no business of ours."""
        request = self.observation.request if isinstance(self.observation, CsrObserved) else None
        return request if request is not None and needs_attestation(request) else None

    @property
    def node_name(self) -> str:
        """Of the Node whose identity asks, "" once the request is gone."""
        return self.observation.request.node_name if isinstance(self.observation, CsrObserved) else ""


def needs_attestation(request: SigningRequest) -> bool:
    """Whether it waits for a decision that depends on what a machine says."""
    return request.is_kubelet_serving and request.is_pending


def is_superseded_by(one: RequestState, other: RequestState) -> bool:
    """Whether `other` is a newer pending request of the same requester: csr answers only the newest.

    csr orders requests by the resourceVersion at which it first heard of each. What was written to a request
    later makes that version larger for a replica that started later, so only a clear order counts.
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
    """Of the request that an observation is about."""
    return event.uid if isinstance(event, CsrGone) else event.request.uid


def create_state(
    message: Message,
    observed: CsrObserved | CsrGone,
    stored: EnrichedCsr | None,
    *,
    republish_in: float,
    now: float,
) -> RequestState:
    """A request that we know nothing of but what the stream holds (`heard`), and when it is said again."""
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
    """Newer word of the watcher. Another uid is another request."""
    if get_uid(observed) != state.uid:
        return create_state(message, observed, state.published, republish_in=intervals.republish, now=now)
    if message.sequence <= state.observed_sequence and not state.is_stale:
        return state  # read again from the beginning, after the connection was lost
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
    """The stream is another one: what was said is lost."""
    return msgspec.structs.replace(
        state, is_stale=True, published=None, republish_at=NEVER, observed_sequence=0
    )


def mark_unpublished(state: RequestState) -> RequestState:
    """What was said is lost, the observation is not."""
    return (
        state
        if state.published is None
        else msgspec.structs.replace(state, published=None, republish_at=NEVER)
    )


# ---- what became of something said


def apply_published(
    state: RequestState, event: EnrichedCsr, *, now: float, intervals: PollIntervals, jitter: float
) -> RequestState:
    """The stream holds it, or something newer. A repetition puts off no look."""
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
    """The bus did not take it."""
    wait = backoff_seconds(state.publish_failures + 1, jitter)
    return msgspec.structs.replace(
        state, publish_failures=state.publish_failures + 1, publish_after=now + wait
    )


def apply_bus_reconnect(state: RequestState, *, now: float, jitter: float) -> RequestState:
    """What could not be said may be said, within a second."""
    return (
        msgspec.structs.replace(state, publish_failures=0, publish_after=now + jitter)
        if state.publish_failures
        else state
    )


def apply_oversized_message(state: RequestState, event: EnrichedCsr) -> RequestState:
    """No message may be that large: it is told without the facts. Without any it is not told at all."""
    facts = event.facts if isinstance(event, CsrEnriched) else None
    return msgspec.structs.replace(
        state,
        oversized_facts=facts or state.oversized_facts,
        publish_after=LONG_AGO if facts is not None else NEVER,
    )


def apply_publish_conflict(
    state: RequestState, mine: EnrichedCsr, theirs: EnrichedCsr | None, *, now: float
) -> RequestState:
    """Somebody else spoke of the same observation. Who has facts is right, of two the one who looks last."""
    if theirs is None or _count_answers(theirs) < _count_answers(mine):
        return msgspec.structs.replace(state, published=theirs)
    if not isinstance(mine, CsrEnriched) or mine.facts is None or _has_as_much(mine, theirs):
        return msgspec.structs.replace(state, published=mine)
    return msgspec.structs.replace(state, published=theirs, fresh_from=now)


def apply_stored(state: RequestState, theirs: EnrichedCsr) -> RequestState:
    """The stream holds somebody else's newer word by now: if it says less than ours, ours is said again."""
    if state.published is None or _count_answers(theirs) < _count_answers(state.published):
        return msgspec.structs.replace(state, published=theirs)
    return state


def is_equivalent(one: EnrichedCsr, other: EnrichedCsr) -> bool:
    """Whether two messages tell consumers the same: times, order and counts apart."""
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
    """They may have dialled where we have not yet."""
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


# ---- what it has led to


def apply_poll_requested(state: RequestState, *, now: float) -> RequestState:
    """A look was asked for; the next one later, should this one not lead to a decision."""
    if now < state.next_poll_request_at:
        return state
    looks = state.requested_polls + 1
    return msgspec.structs.replace(
        state, requested_polls=looks, next_poll_request_at=now + _delay_until_poll(looks)
    )


def apply_dial_started(state: RequestState, facts: MachineFacts, node_uid: str) -> RequestState:
    """The contested addresses of these facts are being dialled; what was answered before holds meanwhile."""
    held = state.answering_addresses if state.dialled_node_uid == node_uid else frozenset()
    return msgspec.structs.replace(
        state, answering_addresses=held, dialled_facts=facts, dialled_node_uid=node_uid, next_dial_at=NEVER
    )


def apply_dial_result(state: RequestState, answering: frozenset[str], *, again_at: float) -> RequestState:
    """At these contested addresses the Node's own machine answered."""
    return msgspec.structs.replace(state, answering_addresses=answering, next_dial_at=again_at)


def _delay_until_poll(looks: int) -> float:
    return exponential_step(looks + 1, first=_POLL_FIRST_SECONDS, cap=_POLL_CAP_SECONDS)
