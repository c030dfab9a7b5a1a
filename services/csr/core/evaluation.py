"""Evaluates an enriched request by the current state. csr writes nothing without this evaluation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.events import CsrEnriched, CsrObserved
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import OBSERVED_CSR, OBSERVED_NODE
from services.csr.core.decide import decide
from services.csr.core.decision import ApiEndpoint, ApprovalPolicy, Approve, Decision, Deny, Ignore, Wait
from services.csr.core.flow_state import FlowState
from services.csr.core.metadata_reports import MetadataReports
from services.csr.core.pending_requests import BURST

# for own writes; after this time the observed state counts again: etcd may be restored from a backup
_WRITE_TTL_SECONDS: Final = 60.0
_RATE_LIMITED: Final = "TooManyRequests"
_RATE_LIMITED_TEXT: Final = (
    f"csr answered more than {BURST} requests of this node lately and answers one more each minute; the "
    "limit is per node"
)


@dataclass(eq=False, kw_only=True)
class RequestEvaluator:
    """Reads the cached state, and changes nothing."""

    state: FlowState
    stream_cache: StreamCache
    reports: MetadataReports
    policy: ApprovalPolicy  # the operator's part
    api_endpoint: Callable[[], ApiEndpoint]
    ownership: Callable[[], Ownership]
    list_pause_reasons: Callable[[], tuple[str, ...]]  # why csr may decide nothing now
    clock: Callable[[], float]  # monotonic, in seconds

    def evaluate(self, message: Message, event: CsrEnriched) -> Decision:
        """Evaluate by the current state. Call it again after each await.

        Raises TemporaryError while csr may decide no request.
        """
        if settled := self._why_settled(message, event.request):
            return Ignore(reason=settled, outcome="settled")
        if paused := self.list_pause_reasons():
            raise TemporaryError("csr may decide no request now", "; ".join(paused))
        return (
            self._find_ignore(event.request)
            or self._find_limit(event.request)
            or self._decide(message, event)
        )

    def _why_settled(self, message: Message, request: SigningRequest) -> str:
        """Return why the message needs no further processing; "" if it does."""
        if outdated := self.stream_cache.why_outdated(message):
            return outdated
        observed = self.stream_cache.get_event(f"{OBSERVED_CSR}.{request.name}")
        if not isinstance(observed, CsrObserved):
            return "the request is gone"
        if observed.request.uid != request.uid:
            return "a newer request has the same name"
        if not observed.request.is_pending:
            return "the request is decided"
        pending = self.state.requests.by_name.get(request.name)
        if pending and pending.uid == request.uid and self.clock() - pending.written_at < _WRITE_TTL_SECONDS:
            return "it was decided here a moment ago"
        return ""

    def _find_ignore(self, request: SigningRequest) -> Ignore | None:
        node = self.state.claims.get_node(request.node_name)
        if node is not None and (foreign := why_not_owned(self.ownership(), node)):
            return Ignore(reason=foreign, outcome="not-ours")
        if newer := self.state.requests.find_superseding(request.name):
            reason = f"{newer} of the same node is newer: older ones are not answered"
            return Ignore(reason=reason, outcome="superseded")
        return None

    def _find_limit(self, request: SigningRequest) -> Wait | None:
        seconds = self.state.rate_limiter.seconds_until_allowed(request.node_name, self.clock())
        if not seconds:
            return None
        return Wait(reason=_RATE_LIMITED, message=_RATE_LIMITED_TEXT, retry_after_seconds=seconds)

    def _decide(self, message: Message, event: CsrEnriched) -> Decision:
        match self._decide_by_fresh_facts(message, event):
            case Wait() as wait if event.facts is None and not event.without_talos:
                # Metadata's next message ends this wait, not a change of a Node.
                return msgspec.structs.replace(wait, nodes=frozenset())
            case Deny(message=why) if self._may_be_excluded(event.request):
                return _wait_for_node(event.request, why)
            case Approve() as approve:
                startup = None if event.without_talos else self.reports.find_startup_wait()
                return self._find_unknown_node() or startup or approve
            case decision:
                return decision

    def _decide_by_fresh_facts(self, message: Message, event: CsrEnriched) -> Decision:
        networks = self.state.networks
        policy = msgspec.structs.replace(
            self.policy,
            service_networks=networks.cidrs,
            has_service_cidrs=networks.has_service_cidrs,
            api_endpoint=self.api_endpoint(),
        )
        decision = decide(event, self.state.claims, policy).decision
        is_final = isinstance(decision, Approve | Deny)
        age_wait = self.reports.find_age_wait(message, self.clock()) if is_final else None
        if age_wait is None:
            return decision
        # Ignore facts that are too old. A request with a permanent fault stays denied.
        without_facts = msgspec.structs.replace(event, facts=None, fault=None, without_talos=False)
        decision = decide(without_facts, self.state.claims, policy).decision
        return decision if isinstance(decision, Deny) else age_wait

    def _find_unknown_node(self) -> Wait | None:
        """Return a wait while the last message about a Node is invalid: the Node may be a rival."""
        names = frozenset(self.stream_cache.list_unknown(OBSERVED_NODE))
        text = "the last message about Node {} is unreadable or fenced: it may claim the same address or name"
        return Wait(reason="startup", message=text.format(min(names)), nodes=names) if names else None

    def _may_be_excluded(self, request: SigningRequest) -> bool:
        """Whether the Node does not exist yet and another controller may manage it (restricted ownership)."""
        return self.ownership().is_restricted and self.state.claims.get_node(request.node_name) is None


def _wait_for_node(request: SigningRequest, why: str) -> Wait:
    """Return a wait: a denial is final, and another controller may manage a Node that does not exist yet."""
    text = f"Node {request.node_name} does not exist, so its owner is unknown; with this owner csr would deny"
    return Wait(reason="node", message=f"{text}: {why}", nodes=frozenset({request.node_name}))
