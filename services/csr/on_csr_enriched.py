"""Handles an enriched request: approve it, deny it, or wait for what is missing."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from libs.common.bus.cache_sync import CacheSync
from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import PermanentError, RequeueAfter, TemporaryError
from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrEnriched, EnrichedCsrGone
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import ENRICHED_CSR, object_name_in
from libs.common.kube.errors import FenceFailed, NotFound
from libs.common.observability import telemetry
from libs.common.service.waiting_objects import WaitingObject, WaitingObjects
from services.csr.approval_writer import ApprovalWriter, build_condition
from services.csr.decision import Approve, Deny, Wait
from services.csr.node_events import MAX_RIVALS, NodeEvents
from services.csr.pending_requests import PendingRequests
from services.csr.rate_limiter import NodeRateLimiter
from services.csr.request_evaluator import Drop, Pause, RequestAction, RequestEvaluator, SkipRequest

# only a fallback: the change that a request waits for triggers the next evaluation
RETRY_SECONDS: Final = 30.0
FENCE_RETRY_SECONDS: Final = 5.0  # by then the watcher has published the current state in Kubernetes
_MAX_WAIT_NODES: Final = 64  # that can end one wait; limits the cost of an address that every Node claims


class WaitingRequest(WaitingObject, frozen=True, kw_only=True):
    """A request that csr could not decide yet; its `reason` is the name of a check."""

    requester: str  # the node that filed the request
    message: str
    nodes: frozenset[str]  # a change of any of them may end the wait
    rivals: tuple[str, ...] = ()  # nodes with an equally strong claim

    @property
    def node(self) -> str:
        """The requester: its wait continues with its next request."""
        return self.requester

    @property
    def causes(self) -> frozenset[str]:
        """The nodes that can end the wait."""
        return self.nodes

    @property
    def episode(self) -> str:
        """The name of the check."""
        return self.reason


@dataclass(eq=False, kw_only=True)
class OnCsrEnriched:
    """Gathers the current state, decides, writes and publishes. Deleted or decided requests get no write."""

    cache_sync: CacheSync
    evaluator: RequestEvaluator
    rate_limiter: NodeRateLimiter
    pending_requests: PendingRequests
    waiting_requests: WaitingObjects[WaitingRequest]
    approval_writer: ApprovalWriter
    decision_publisher: DecisionPublisher
    node_events: NodeEvents
    clock: Callable[[], float]  # monotonic, in seconds

    def __post_init__(self) -> None:
        self._skipped_nodes: set[str] = set()  # Nodes with a skipped request since their last change
        self._fence_failures: dict[str, int] = {}  # request -> sequence of the message whose fence failed

    async def __call__(self, message: Message) -> None:
        """Process a message. Raises RequeueAfter for a wait, TemporaryError for a temporary failure."""
        event = message.event
        if not isinstance(event, CsrEnriched | EnrichedCsrGone):
            raise PermanentError(f"{type(event).__name__} is not an event about an enriched request")
        if object_name_in(message.subject, ENRICHED_CSR) != _name_of(event):
            raise PermanentError(f"{message.subject} contains another request, {_name_of(event)}")
        await self.cache_sync.wait_for(message)
        action = self.evaluator.evaluate(message, event)
        if isinstance(action, Approve | Deny):
            action = await self._write(message, event, action)
        await self._apply_action(event, action)

    def forget(self, name: str) -> None:
        """Forget a request that is deleted or decided."""
        self.evaluator.forget(name)
        self._fence_failures.pop(name, None)

    def forget_all(self) -> None:
        """Forget everything, after the stream was replaced: its sequences start again."""
        self.evaluator.forget_all()
        self._fence_failures.clear()
        self._skipped_nodes.clear()

    def take_skipped(self, node: str) -> bool:
        """Whether csr skipped a request of that changed Node as not its own; True once per change."""
        is_so = node in self._skipped_nodes
        self._skipped_nodes.discard(node)
        return is_so

    # ---- write and publish

    async def _write(
        self, message: Message, event: CsrEnriched | EnrichedCsrGone, action: RequestAction
    ) -> RequestAction:
        """Write the action of this moment, or another one if it must wait; return it, written or not."""
        request = _request_of(event)
        try:
            action = await self.approval_writer.write(
                request, action, lambda: self.evaluator.evaluate(message, event)
            )
        except (FenceFailed, NotFound) as error:
            self.rate_limiter.record_write(request.node_name, self.clock())
            self._raise_fence_failure(message, request, error)
        if isinstance(action, Approve | Deny):
            self.rate_limiter.record_write(request.node_name, self.clock())
            # otherwise the watcher has already reported it
            if request.name in self.pending_requests.by_name:
                self.evaluator.record_write(request)
        return action

    async def _apply_action(self, event: CsrEnriched | EnrichedCsrGone, action: RequestAction) -> None:
        match action:
            case Drop(reason=reason):
                telemetry.annotate(outcome="settled", reason=reason)
            case Pause(reason=reason):
                raise TemporaryError("csr may decide no request now", reason)
            case SkipRequest():
                await self._skip(_request_of(event), action)
            case Wait():
                await self._wait(_request_of(event), action)
            case Approve() | Deny():
                await self._finish(_request_of(event), action)

    async def _skip(self, request: SigningRequest, skip: SkipRequest) -> None:
        if skip.outcome == "superseded":
            self.waiting_requests.remove(request.name)
        else:
            self.waiting_requests.finish(request.name, request.node_name)
        if skip.outcome == "not-ours":
            self._skipped_nodes.add(request.node_name)
        await self._publish_decision(request, skip.outcome, skip.reason)

    async def _finish(self, request: SigningRequest, decision: Approve | Deny) -> None:
        self.waiting_requests.finish(request.name, request.node_name)
        if isinstance(decision, Approve):
            self.node_events.forget_reasons(request)
        else:
            self.node_events.record_denied(request, decision.check, decision.message)
        outcome = "approved" if isinstance(decision, Approve) else "denied"
        change = f"condition {build_condition(decision).type}: {decision.message}"
        await self._publish_decision(request, outcome, decision.message, changes=(change,))

    async def _wait(self, request: SigningRequest, wait: Wait) -> NoReturn:
        """Record the wait and publish it. Raises RequeueAfter."""
        seconds = wait.retry_after_seconds
        waits = WaitingRequest(
            name=request.name,
            uid=request.uid,
            requester=request.node_name,
            reason=wait.reason,
            message=wait.message,
            nodes=_limit_nodes(wait.nodes, request.node_name),
            rivals=wait.rivals[:MAX_RIVALS],
            retry_at=math.inf if seconds is None else self.clock() + seconds,
        )
        self.waiting_requests.add(waits, self.clock())
        await self._publish_decision(request, "waiting", wait.message)
        raise RequeueAfter(wait.reason, wait.message, retry_after_seconds=max(seconds or 0.0, RETRY_SECONDS))

    async def _publish_decision(
        self, request: SigningRequest, outcome: str, reason: str, *, changes: tuple[str, ...] = ()
    ) -> None:
        telemetry.annotate(node=request.node_name)
        await self.decision_publisher.publish(request, outcome, reason, changes=changes)

    def _raise_fence_failure(
        self, message: Message, request: SigningRequest, error: FenceFailed | NotFound
    ) -> NoReturn:
        """Raise for a failed fence: the request is decided, another one, or the message is wrong.

        The watcher will publish the current state. Raises RequeueAfter at first, and TemporaryError if the
        request still seems pending then.
        """
        self.waiting_requests.remove(request.name)
        again = self._fence_failures.get(request.name) == message.sequence
        if request.name in self.pending_requests.by_name:
            self._fence_failures[request.name] = message.sequence
        if again:
            raise TemporaryError("the fence failed repeatedly: the request in Kubernetes differs", str(error))
        reason = "fence failed: the request in Kubernetes differs or is decided"
        raise RequeueAfter(reason, str(error), retry_after_seconds=FENCE_RETRY_SECONDS) from error


def _limit_nodes(nodes: frozenset[str], requester: str) -> frozenset[str]:
    """Limit the Nodes of a wait; a change of another one takes effect at the next periodic evaluation."""
    others = sorted(nodes - {requester})[: _MAX_WAIT_NODES - 1]
    return frozenset(others) | (nodes & {requester})


def _request_of(event: CsrEnriched | EnrichedCsrGone) -> SigningRequest:
    """Return the request of an event whose action is not Drop; a deleted request always gets Drop."""
    assert isinstance(event, CsrEnriched)
    return event.request


def _name_of(event: CsrEnriched | EnrichedCsrGone) -> str:
    return event.request.name if isinstance(event, CsrEnriched) else event.name
