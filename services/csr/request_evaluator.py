"""What becomes of an enriched request by all that is known now. Nothing is written without this verdict."""

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.events import CsrEnriched, CsrObserved, EnrichedCsrGone
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import OBSERVED_CSR
from services.csr.claim_index import ClaimIndex
from services.csr.decide import decide
from services.csr.decision import ApprovalPolicy, Approve, Decision, Deny, Ignore, Wait
from services.csr.metadata_reports import MetadataReports
from services.csr.pending_requests import PendingRequests
from services.csr.rate_limiter import BURST, NodeRateLimiter

_WRITE_TTL_SECONDS: Final = 60.0  # what we have written; an etcd restored from a backup goes back
_RATE_LIMITED: Final = "TooManyRequests"
_RATE_LIMITED_TEXT: Final = (
    f"more than {BURST} requests of this node were answered lately, one more is each minute; other nodes "
    "are not concerned"
)


class Drop(msgspec.Struct, frozen=True):
    """Nothing is left to do for this message."""

    reason: str


class Pause(msgspec.Struct, frozen=True):
    """Nothing may be decided now, for any request."""

    reason: str


class SkipRequest(msgspec.Struct, frozen=True):
    """The request gets no answer of ours."""

    outcome: Literal["not-ours", "superseded", "ignored"]
    reason: str


RequestAction = Drop | Pause | SkipRequest | Wait | Approve | Deny


class RequestEvaluator:
    """Reads the followed state and changes nothing but its memory of what was written."""

    def __init__(
        self,
        *,
        stream_cache: StreamCache,
        pending_requests: PendingRequests,
        claim_index: ClaimIndex,
        reports: MetadataReports,
        rate_limiter: NodeRateLimiter,
        policy: Callable[[], ApprovalPolicy],
        ownership: Callable[[], Ownership],
        why_undecided: Callable[[], tuple[str, ...]],
        clock: Callable[[], float],
    ) -> None:
        """`why_undecided` returns why no request may be decided now; `clock` is monotonic, in seconds."""
        self._stream_cache = stream_cache
        self._pending_requests = pending_requests
        self._claim_index = claim_index
        self._reports = reports
        self._rate_limiter = rate_limiter
        self._policy = policy
        self._ownership = ownership
        self._why_undecided = why_undecided
        self._clock = clock
        self._written: dict[str, tuple[str, float]] = {}  # request -> uid, when

    def evaluate(self, message: Message, event: CsrEnriched | EnrichedCsrGone) -> RequestAction:
        """By everything that is known at this moment; call it again after each wait."""
        settled = self._why_dropped(message, event)
        if settled or isinstance(event, EnrichedCsrGone):
            return Drop(settled or "the request is gone")
        if undecided := self._why_undecided():
            return Pause("; ".join(undecided))
        request = event.request
        if foreign := self._why_excluded(request):
            return SkipRequest("not-ours", foreign)
        if newer := self._pending_requests.find_superseding(request.name):
            return SkipRequest(
                "superseded", f"{newer} of the same node is newer: older ones are not answered"
            )
        if seconds := self._rate_limiter.seconds_until_allowed(request.node_name, self._clock()):
            return Wait(
                reason=_RATE_LIMITED,
                message=_RATE_LIMITED_TEXT,
                nodes=frozenset(),
                retry_after_seconds=seconds,
            )
        return self._convert_decision(event, self._decide_by_fresh_facts(message, event))

    def record_write(self, request: SigningRequest) -> None:
        """Note an answer of ours: it is believed until the watcher reports it."""
        self._written[request.name] = (request.uid, self._clock())

    def forget(self, name: str) -> None:
        """The request is gone, or decided."""
        self._written.pop(name, None)

    def forget_all(self) -> None:
        """Everything known is void."""
        self._written.clear()

    def _decide_by_fresh_facts(self, message: Message, event: CsrEnriched) -> Decision:
        decision = decide(event, self._claim_index, self._policy()).decision
        is_final = isinstance(decision, Approve | Deny)
        why = self._reports.why_stale(message, self._clock()) if is_final else ""
        if not why:
            return decision
        # Facts that are too old are none. What the request itself forbids stays denied.
        without_facts = msgspec.structs.replace(event, facts=None, fault=None, without_talos=False)
        decision = decide(without_facts, self._claim_index, self._policy()).decision
        return decision if isinstance(decision, Deny) else Wait(reason="age", message=why, nodes=frozenset())

    def _convert_decision(self, event: CsrEnriched, decision: Decision) -> RequestAction:
        match decision:
            case Ignore(reason=reason):
                return SkipRequest("ignored", reason)
            case Wait() if event.facts is None and not event.without_talos:
                # no Node that changes ends it, but what metadata says of it next
                return msgspec.structs.replace(decision, nodes=frozenset())
            case Deny(message=why) if self._may_be_excluded(event.request):
                return _wait_for_node(event.request, why)
            case Approve() if not event.without_talos and (why := self._reports.why_reports_missing()):
                return Wait(reason="startup", message=why, nodes=frozenset())
            case _:
                return decision

    def _why_dropped(self, message: Message, event: CsrEnriched | EnrichedCsrGone) -> str:
        if event.stream_id != self._stream_cache.stream_id:
            return "it was written for another incarnation of the stream"
        newest = self._stream_cache.get(message.subject)
        if newest is not None and newest.sequence > message.sequence:
            return "newer word of this request is on its way"
        if isinstance(event, EnrichedCsrGone):
            return ""
        observed = self._stream_cache.get(f"{OBSERVED_CSR}.{event.request.name}")
        if observed is None or not isinstance(observed.event, CsrObserved):
            return "the request is gone"
        if observed.event.request.uid != event.request.uid:
            return "another request has its name by now"
        if not observed.event.request.is_pending:
            return "the request is decided"
        uid, at = self._written.get(event.request.name, ("", 0.0))
        is_ours = uid == event.request.uid and self._clock() - at < _WRITE_TTL_SECONDS
        return "it was decided here a moment ago" if is_ours else ""

    def _why_excluded(self, request: SigningRequest) -> str:
        node = self._claim_index.get_node(request.node_name)
        return why_not_owned(self._ownership(), node) if node is not None else ""

    def _may_be_excluded(self, request: SigningRequest) -> bool:
        """Whether its Node may turn out to be another's: there is none yet, and not every Node is ours."""
        return self._ownership().is_restricted and self._claim_index.get_node(request.node_name) is None


def _wait_for_node(request: SigningRequest, why: str) -> Wait:
    """A refusal is final, and a Node that does not exist yet may be another's."""
    text = (
        f"Node {request.node_name} does not exist, so whose it will be is not known: not denied yet, though: "
    )
    return Wait(reason="node", message=text + why, nodes=frozenset({request.node_name}))
