"""The state of one request in metadata, and all its changes. All times are monotonic seconds."""

from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.bus.delivery import exponential_step
from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrEnriched, CsrGone, CsrObserved, EnrichedCsr, EnrichedCsrGone
from libs.common.contract.machine import MachineFacts
from libs.common.contract.signing_request import SigningRequest
from services.metadata.core.event_equivalence import is_equivalent
from services.metadata.core.object_state import (
    LONG_AGO,
    NEVER,
    Observation,
    Publication,
    Timing,
    make_observation,
)

FRESHNESS_SECONDS: Final = 10.0  # how much older than the request a poll may be
_POLL_FIRST_SECONDS: Final = 10.0  # after published facts that led to no decision
_POLL_CAP_SECONDS: Final = 60.0


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """All data about one request, except the state of its Node."""

    observation: Observation[CsrObserved | CsrGone]
    publication: Publication[EnrichedCsr]
    oversized_facts: MachineFacts | None = None  # facts that make the message too large

    first_resource_version: int = 0  # the request's resourceVersion when first received
    first_seen_at: float  # when metadata first received the request; the watcher observed it earlier
    fresh_from: float  # a poll that began earlier proves nothing
    requested_polls: int = 0  # requested because the published facts led to no decision
    next_poll_request_at: float  # when the next such poll is due

    # contested addresses at which the Node's own machine answered
    answering_addresses: frozenset[str] = frozenset()
    dialled_facts: MachineFacts | None = None  # the facts that attested them
    dialled_node_uid: str = ""  # the Node's uid at the time of the dial
    next_dial_at: float = LONG_AGO  # when to check again for contested addresses

    @property
    def uid(self) -> str:
        """The uid of the request."""
        return self.observation.uid

    @property
    def pending_request(self) -> SigningRequest | None:
        """The request while it needs an attestation; None if it is decided, gone or not a kubelet's."""
        event = self.observation.event
        request = event.request if isinstance(event, CsrObserved) else None
        return request if request is not None and needs_attestation(request) else None

    @property
    def node_name(self) -> str:
        """The name of the requesting Node, "" once the request is gone."""
        event = self.observation.event
        return event.request.node_name if isinstance(event, CsrObserved) else ""

    def is_superseded_by(self, other: "RequestState") -> bool:
        """Return whether `other` is a newer pending request of the same requester.

        csr decides only the newest. It orders requests by the resourceVersion at which it first received
        each. A later write to a request makes that version larger for a replica that starts later, so only a
        clear order counts.
        """
        mine, theirs = self.pending_request, other.pending_request
        if mine is None or theirs is None or other.observation.is_stale or mine.uid == theirs.uid:
            return False
        if (mine.node_name, mine.is_requested_by_node) != (theirs.node_name, theirs.is_requested_by_node):
            return False
        is_older = mine.resource_version_number < other.first_resource_version
        return is_older and _created(mine) <= _created(theirs)

    # ---- observations

    def observed(self, message: Message, event: CsrObserved | CsrGone, timing: Timing) -> "RequestState":
        """Return the state after a newer observation. Another uid starts a new state."""
        observation = make_observation(message, event, self.observation)
        if observation.uid != self.uid:
            return create_state(observation, self.publication.restarted(timing), now=timing.now)
        if self.observation.is_replay(message):
            return self
        is_gone, publication = isinstance(event, CsrGone), self.publication
        publication = publication.without_backoff() if is_gone else publication
        return replace(self, observation=observation, publication=publication)

    def stream_replaced(self) -> "RequestState":
        """Forget the published message and sequence, which are lost with the old stream."""
        return replace(self, observation=self.observation.stale(), publication=self.publication.lost())

    # ---- publishes

    def published(self, event: EnrichedCsr, timing: Timing) -> "RequestState":
        """Return the state after a publish. A repeated message does not delay the next requested poll."""
        next_poll_request_at = timing.now + _delay_until_poll(self.requested_polls)
        if self.publication.has_equivalent(event):
            next_poll_request_at = self.next_poll_request_at
        return replace(
            self,
            observation=self.observation.answered(event),
            publication=self.publication.published(event, timing),
            next_poll_request_at=next_poll_request_at,
        )

    def publish_conflicted(self, theirs: EnrichedCsr | None, *, now: float) -> "RequestState":
        """Resolve a tie of the published message with another replica's about the same observation.

        The message with more data wins. If both have facts but differ, a new poll decides.
        """
        mine, settled = self.publication.event, self.stored(theirs)
        if settled is not self or not isinstance(mine, CsrEnriched) or mine.facts is None:
            return settled
        if theirs is None or _has_as_much(mine, theirs):
            return self
        return replace(self, publication=replace(self.publication, event=theirs), fresh_from=now)

    def message_oversized(self, event: EnrichedCsr) -> "RequestState":
        """Publish again without the facts. A message that has none and is still too large never is."""
        facts = event.facts if isinstance(event, CsrEnriched) else None
        retry_at = LONG_AGO if facts is not None else NEVER
        publication = replace(self.publication, retry_at=retry_at)
        return replace(self, publication=publication, oversized_facts=facts or self.oversized_facts)

    def stored(self, theirs: EnrichedCsr | None) -> "RequestState":
        """Apply the message that the stream has instead of ours, None if it has none.

        If it has less data than ours, ours is published again.
        """
        mine, publication = self.publication.event, self.publication
        if theirs is None:
            return self if mine is None else replace(self, publication=publication.lost())
        has_less = mine is None or _count_answers(theirs) < _count_answers(mine)
        return replace(self, publication=replace(publication, event=theirs)) if has_less else self

    # ---- polls and dials

    def poll_requested(self, *, now: float) -> "RequestState":
        """Count a requested poll and set when the next one is due, if this one leads to no decision."""
        if now < self.next_poll_request_at:
            return self
        polls = self.requested_polls + 1
        return replace(self, requested_polls=polls, next_poll_request_at=now + _delay_until_poll(polls))

    def dial_started(self, facts: MachineFacts, node_uid: str) -> "RequestState":
        """Start a dial for these facts. Earlier answers for the same Node uid hold until its result."""
        previous = self.answering_addresses if self.dialled_node_uid == node_uid else frozenset()
        return replace(
            self,
            answering_addresses=previous,
            dialled_facts=facts,
            dialled_node_uid=node_uid,
            next_dial_at=NEVER,
        )

    def dial_due(self, *, now: float) -> "RequestState":
        """Check for contested addresses at that time."""
        return replace(self, next_dial_at=now)

    def dialled(self, answering: frozenset[str], *, again_at: float) -> "RequestState":
        """Set the contested addresses at which the Node's own machine answered."""
        return replace(self, answering_addresses=answering, next_dial_at=again_at)


def create_state(
    observation: Observation[CsrObserved | CsrGone], stored: Publication[EnrichedCsr], *, now: float
) -> RequestState:
    """Return the state of a new request with its `stored` message."""
    event = observation.event
    return RequestState(
        observation=observation,
        publication=stored,
        first_resource_version=event.request.resource_version_number if isinstance(event, CsrObserved) else 0,
        first_seen_at=now,
        fresh_from=now - FRESHNESS_SECONDS,
        next_poll_request_at=now + _delay_until_poll(0),
    )


def needs_attestation(request: SigningRequest) -> bool:
    """Return whether the request is a pending kubelet serving request, which needs facts of the machine."""
    return request.is_kubelet_serving and request.is_pending


def _created(request: SigningRequest) -> float:
    created = request.metadata.creation_timestamp
    return created.timestamp() if created is not None else 0.0


def _has_as_much(mine: CsrEnriched, theirs: EnrichedCsr) -> bool:
    """Return whether `theirs` equals `mine`, apart from addresses that only the other replica has dialled."""
    if not isinstance(theirs, CsrEnriched):
        return False
    has_all = set(theirs.answering_addresses) >= set(mine.answering_addresses)
    return has_all and is_equivalent(replace(mine, answering_addresses=theirs.answering_addresses), theirs)


def _count_answers(event: EnrichedCsr) -> int:
    if isinstance(event, EnrichedCsrGone):
        return 3
    return 2 if event.facts is not None else 1 if event.fault is not None else 0


def _delay_until_poll(requested_polls: int) -> float:
    return exponential_step(requested_polls + 1, first=_POLL_FIRST_SECONDS, cap=_POLL_CAP_SECONDS)
