"""Handles an enriched request: approve it, deny it, or wait for what is missing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import PermanentError, RequeueAfter, TemporaryError
from libs.common.bus.flow import Flow
from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrEnriched, EnrichedCsrGone
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import ENRICHED_CSR, object_name_in
from libs.common.kube.errors import FenceFailed, Forbidden, Invalid, NotFound
from libs.common.observability import telemetry
from services.csr.approval_writer import ApprovalWriter, build_condition
from services.csr.core.decision import Approve, Decision, Deny, Ignore, Wait
from services.csr.core.evaluation import RequestEvaluator
from services.csr.core.flow_state import FlowState, WaitingRequest
from services.csr.node_events import MAX_RIVALS, NodeEvents

# only a fallback: the change that a request waits for triggers the next evaluation
RETRY_SECONDS: Final = 30.0
FORBIDDEN: Final = "rights"  # reason of a wait: a missing right, a webhook or a policy
FENCE_RETRY_SECONDS: Final = 5.0  # by then the watcher has published the current state in Kubernetes
_MAX_WAIT_NODES: Final = 64  # that can end one wait; limits the cost of an address that every Node claims


@dataclass(eq=False, kw_only=True)
class OnCsrEnriched:
    """Evaluates, writes and publishes. Deleted or decided requests get no write."""

    flow: Flow
    evaluator: RequestEvaluator
    state: FlowState
    approval_writer: ApprovalWriter
    decision_publisher: DecisionPublisher
    node_events: NodeEvents
    clock: Callable[[], float]  # monotonic, in seconds

    async def __call__(self, message: Message) -> None:
        """Process a message. Raises RequeueAfter for a wait, TemporaryError for a temporary failure."""
        event = message.event
        if not isinstance(event, CsrEnriched | EnrichedCsrGone):
            raise PermanentError(f"{type(event).__name__} is not an event about an enriched request")
        name = event.request.name if isinstance(event, CsrEnriched) else event.name
        if object_name_in(message.subject, ENRICHED_CSR) != name:
            raise PermanentError(f"{message.subject} contains another request, {name}")
        await self.flow.wait_for(message)
        if isinstance(event, EnrichedCsrGone):
            telemetry.annotate(outcome="settled", reason="the request is gone")
            return
        decision = self.evaluator.evaluate(message, event)
        if isinstance(decision, Approve | Deny):
            decision = await self._write(message, event, decision)
        await self._apply(event.request, decision)

    async def _write(self, message: Message, event: CsrEnriched, decision: Decision) -> Decision:
        """Write the decision of this moment, or another one if it must wait; return it, written or not.

        If Kubernetes refuses the write, for a missing right or by a webhook or policy, the request waits.
        """
        request = event.request
        try:
            decision = await self.approval_writer.write(
                request, decision, lambda: self.evaluator.evaluate(message, event)
            )
        except (FenceFailed, NotFound) as error:
            # Decided, another one, or the message is wrong: the watcher will publish the current state.
            self.state.rate_limiter.record_write(request.node_name, self.clock())
            self.state.waiting.remove(request.name)
            reason = "fence failed: the request in Kubernetes differs or is decided"
            raise RequeueAfter(reason, str(error), retry_after_seconds=FENCE_RETRY_SECONDS) from error
        except (Forbidden, Invalid) as error:  # a denial by a policy has the status 422, by a webhook any
            return Wait(reason=FORBIDDEN, message=f"Kubernetes forbids the answer of csr: {error}")
        except TemporaryError:
            # It can be decided: an Event about its former wait would be wrong.
            self.state.waiting.finish(request.name, request.node_name)
            raise
        if isinstance(decision, Approve | Deny):
            self.state.rate_limiter.record_write(request.node_name, self.clock())
            # otherwise the watcher has already reported it
            if pending := self.state.requests.by_name.get(request.name):
                pending.written_at = self.clock()
        return decision

    async def _apply(self, request: SigningRequest, decision: Decision) -> None:
        match decision:
            case Ignore(outcome="settled", reason=reason):
                telemetry.annotate(outcome="settled", reason=reason)
            case Ignore():
                await self._ignore(request, decision)
            case Wait():
                await self._wait(request, decision)
            case Approve() | Deny():
                await self._finish(request, decision)

    async def _ignore(self, request: SigningRequest, ignore: Ignore) -> None:
        if ignore.outcome == "superseded":
            self.state.waiting.remove(request.name)
        else:
            self.state.waiting.finish(request.name, request.node_name)
        if ignore.outcome == "not-ours":
            self.state.not_ours.add(request.node_name)
        await self._publish_decision(request, ignore.outcome, ignore.reason)

    async def _finish(self, request: SigningRequest, decision: Approve | Deny) -> None:
        self.state.waiting.finish(request.name, request.node_name)
        if isinstance(decision, Deny):
            self.node_events.record_denied(request, decision.check, decision.message)
        kind = build_condition(decision).type
        change = f"condition {kind}: {decision.message}"
        await self._publish_decision(request, kind.lower(), decision.message, changes=(change,))

    async def _wait(self, request: SigningRequest, wait: Wait) -> NoReturn:
        """Record the wait and publish it. Raises RequeueAfter."""
        waiting = WaitingRequest(
            name=request.name,
            uid=request.uid,
            requester=request.node_name,
            reason=wait.reason,
            message=wait.message,
            nodes=_limit_nodes(wait.nodes, request.node_name),
            rivals=wait.rivals[:MAX_RIVALS],
        )
        self.state.waiting.add(waiting, self.clock())
        await self._publish_decision(request, "waiting", wait.message)
        retry_after_seconds = wait.retry_after_seconds or RETRY_SECONDS
        raise RequeueAfter(wait.reason, wait.message, retry_after_seconds=retry_after_seconds)

    async def _publish_decision(
        self, request: SigningRequest, outcome: str, reason: str, *, changes: tuple[str, ...] = ()
    ) -> None:
        telemetry.annotate(node=request.node_name)
        await self.decision_publisher.publish(request, outcome, reason, changes=changes)


def _limit_nodes(nodes: frozenset[str], requester: str) -> frozenset[str]:
    """Limit the Nodes of a wait; a change of another one takes effect at the next periodic evaluation."""
    others = sorted(nodes - {requester})[: _MAX_WAIT_NODES - 1]
    return frozenset(others) | (nodes & {requester})
