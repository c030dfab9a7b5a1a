"""Evaluates an enriched request by the current state. csr writes nothing without this evaluation."""

from collections.abc import Callable
from dataclasses import dataclass
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

# for own writes; after this time the observed state counts again: etcd may be restored from a backup
_WRITE_TTL_SECONDS: Final = 60.0
_RATE_LIMITED: Final = "TooManyRequests"
_RATE_LIMITED_TEXT: Final = (
    f"csr answered more than {BURST} requests of this node lately and answers one more each minute; the "
    "limit is per node"
)


class Drop(msgspec.Struct, frozen=True):
    """The message needs no further processing."""

    reason: str


class Pause(msgspec.Struct, frozen=True):
    """csr may decide no request now."""

    reason: str


class SkipRequest(msgspec.Struct, frozen=True):
    """csr does not answer this request."""

    outcome: Literal["not-ours", "superseded", "ignored"]
    reason: str


RequestAction = Drop | Pause | SkipRequest | Wait | Approve | Deny


@dataclass(eq=False, kw_only=True)
class RequestEvaluator:
    """Reads the cached state, and records only csr's own writes."""

    stream_cache: StreamCache
    pending_requests: PendingRequests
    claim_index: ClaimIndex
    reports: MetadataReports
    rate_limiter: NodeRateLimiter
    policy: Callable[[], ApprovalPolicy]
    ownership: Callable[[], Ownership]
    list_pause_reasons: Callable[[], tuple[str, ...]]  # why csr may decide nothing now
    clock: Callable[[], float]  # monotonic, in seconds

    def __post_init__(self) -> None:
        self._written: dict[str, tuple[str, float]] = {}  # request -> uid and time of the write

    def evaluate(self, message: Message, event: CsrEnriched | EnrichedCsrGone) -> RequestAction:
        """Evaluate by the current state. Call it again after each await."""
        drop_reason = self._explain_drop(message, event)
        if drop_reason or isinstance(event, EnrichedCsrGone):
            return Drop(drop_reason or "the request is gone")
        if undecided := self.list_pause_reasons():
            return Pause("; ".join(undecided))
        request = event.request
        if foreign := self._explain_exclusion(request):
            return SkipRequest("not-ours", foreign)
        if newer := self.pending_requests.find_superseding(request.name):
            return SkipRequest(
                "superseded", f"{newer} of the same node is newer: older ones are not answered"
            )
        if seconds := self.rate_limiter.seconds_until_allowed(request.node_name, self.clock()):
            return Wait(
                reason=_RATE_LIMITED,
                message=_RATE_LIMITED_TEXT,
                nodes=frozenset(),
                retry_after_seconds=seconds,
            )
        return self._convert_decision(event, self._decide_by_fresh_facts(message, event))

    def record_write(self, request: SigningRequest) -> None:
        """Record an own write; it counts as decided until the watcher reports it."""
        self._written[request.name] = (request.uid, self.clock())

    def forget(self, name: str) -> None:
        """Forget a request that is deleted or decided."""
        self._written.pop(name, None)

    def forget_all(self) -> None:
        """Forget all own writes."""
        self._written.clear()

    def _decide_by_fresh_facts(self, message: Message, event: CsrEnriched) -> Decision:
        decision = decide(event, self.claim_index, self.policy()).decision
        is_final = isinstance(decision, Approve | Deny)
        why = self.reports.explain_staleness(message, self.clock()) if is_final else ""
        if not why:
            return decision
        # Ignore facts that are too old. A request with a permanent fault stays denied.
        without_facts = msgspec.structs.replace(event, facts=None, fault=None, without_talos=False)
        decision = decide(without_facts, self.claim_index, self.policy()).decision
        return decision if isinstance(decision, Deny) else Wait(reason="age", message=why, nodes=frozenset())

    def _convert_decision(self, event: CsrEnriched, decision: Decision) -> RequestAction:
        match decision:
            case Ignore(reason=reason):
                return SkipRequest("ignored", reason)
            case Wait() if event.facts is None and not event.without_talos:
                # Metadata's next message ends this wait, not a change of a Node.
                return msgspec.structs.replace(decision, nodes=frozenset())
            case Deny(message=why) if self._may_be_excluded(event.request):
                return _wait_for_node(event.request, why)
            case Approve() if not event.without_talos and (why := self.reports.explain_missing_reports()):
                return Wait(reason="startup", message=why, nodes=frozenset())
            case _:
                return decision

    def _explain_drop(self, message: Message, event: CsrEnriched | EnrichedCsrGone) -> str:
        if self.stream_cache.is_foreign(message):
            return "the message was published for a former stream"
        newest = self.stream_cache.get(message.subject)
        if newest is not None and newest.sequence > message.sequence:
            return "the stream contains a newer event about this request"
        if isinstance(event, EnrichedCsrGone):
            return ""
        observed = self.stream_cache.get(f"{OBSERVED_CSR}.{event.request.name}")
        if observed is None or not isinstance(observed.event, CsrObserved):
            return "the request is gone"
        if observed.event.request.uid != event.request.uid:
            return "a newer request has the same name"
        if not observed.event.request.is_pending:
            return "the request is decided"
        uid, at = self._written.get(event.request.name, ("", 0.0))
        is_ours = uid == event.request.uid and self.clock() - at < _WRITE_TTL_SECONDS
        return "it was decided here a moment ago" if is_ours else ""

    def _explain_exclusion(self, request: SigningRequest) -> str:
        node = self.claim_index.get_node(request.node_name)
        return why_not_owned(self.ownership(), node) if node is not None else ""

    def _may_be_excluded(self, request: SigningRequest) -> bool:
        """Whether the Node does not exist yet and another controller may manage it (restricted ownership)."""
        return self.ownership().is_restricted and self.claim_index.get_node(request.node_name) is None


def _wait_for_node(request: SigningRequest, why: str) -> Wait:
    """Return a wait: a denial is final, and another controller may manage a Node that does not exist yet."""
    text = f"Node {request.node_name} does not exist, so its owner is unknown; with this owner csr would deny"
    return Wait(reason="node", message=f"{text}: {why}", nodes=frozenset({request.node_name}))
