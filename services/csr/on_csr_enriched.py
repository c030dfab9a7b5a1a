"""A node's request and what its machine says of itself: approve it, deny it, or wait for what is missing."""

from collections.abc import Callable
from typing import Final, NoReturn

from libs.common import telemetry
from libs.common.bus import Message
from libs.common.decisions import Decisions
from libs.common.delivery import NotYet, PermanentError, TemporaryError
from libs.common.events import CsrEnriched, EnrichedCsrGone
from libs.common.flow_table import FlowTable
from libs.common.kube_api.errors import FenceFailed, NotFound
from libs.common.signing_request import SigningRequest
from libs.common.subjects import ENRICHED_CSR, name_in
from libs.common.watch_flow import WatchFlow
from services.csr.approvals_api import ApprovalsApi, condition_of
from services.csr.budget import Budget
from services.csr.judge import Judge, Left, Paused, Settled, Verdict
from services.csr.judgement import Approve, Deny, Wait
from services.csr.node_events import MOST_RIVALS, NodeEvents
from services.csr.requesters import Requesters
from services.csr.waiting import WaitingRequest, WaitingRequests

AGAIN_SECONDS: Final = 30.0  # a safety net: what a request waits for is heard of when it happens
SETTLES_SECONDS: Final = 5.0  # the watcher has told by then what Kubernetes holds instead
_MOST_NODES: Final = 64  # that one wait is ended by: an address that everybody claims must not cost a square


class OnCsrEnriched:
    """Gather the newest view, decide, write, tell. What is gone or decided by now gets nothing."""

    def __init__(
        self,
        *,
        table: FlowTable,
        flow: WatchFlow,
        judge: Judge,
        budget: Budget,
        requesters: Requesters,
        waiting: WaitingRequests,
        approvals: ApprovalsApi,
        decisions: Decisions,
        events: NodeEvents,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._table = table
        self._flow = flow
        self._judge = judge
        self._budget = budget
        self._requesters = requesters
        self._waiting = waiting
        self._approvals = approvals
        self._decisions = decisions
        self._events = events
        self._clock = clock
        self._left_alone: set[str] = set()  # Nodes, since they last changed
        self._refused: dict[str, int] = {}  # request -> sequence of the message that failed at the fence

    async def __call__(self, message: Message) -> None:
        """Raises NotYet while it waits, TemporaryError for what the world may cure."""
        event = message.event
        if not isinstance(event, CsrEnriched | EnrichedCsrGone):
            raise PermanentError(f"{type(event).__name__} is no event about an enriched request")
        if name_in(message.subject, ENRICHED_CSR) != _name_of(event):
            raise PermanentError(f"{message.subject} speaks of another request, {_name_of(event)}")
        is_known = event.incarnation == self._table.incarnation
        await self._flow.reached(message.sequence if is_known else 0)
        verdict = self._judge.verdict(message, event)
        if isinstance(verdict, Approve | Deny):
            verdict = await self._write(message, event)
        await self._conclude(event, verdict)

    def forget(self, name: str) -> None:
        """The request is gone, or decided."""
        self._judge.forget(name)
        self._refused.pop(name, None)

    def forget_all(self) -> None:
        """Another stream: sequences mean something else from here on."""
        self._judge.forget_all()
        self._refused.clear()
        self._left_alone.clear()

    def was_left_alone(self, node: str) -> bool:
        """Whether a request of that Node, which has changed, was none of ours; said once of each change."""
        is_so = node in self._left_alone
        self._left_alone.discard(node)
        return is_so

    # ---- write, tell

    async def _write(self, message: Message, event: CsrEnriched | EnrichedCsrGone) -> Verdict:
        """Write what holds once a slot is free; return it, whether or not it was written."""
        request = _request_in(event)
        try:
            verdict = await self._approvals.write(request, lambda: self._judge.verdict(message, event))
        except (FenceFailed, NotFound) as error:
            self._budget.spend(request.node_name, self._clock())
            self._raise_refused(message, request, error)
        if isinstance(verdict, Approve | Deny):
            self._budget.spend(request.node_name, self._clock())
            if request.name in self._requesters.pending:  # else the watcher has told of it already
                self._judge.wrote(request)
        return verdict

    async def _conclude(self, event: CsrEnriched | EnrichedCsrGone, verdict: Verdict) -> None:
        match verdict:
            case Settled(reason=reason):
                telemetry.annotate(outcome="settled", reason=reason)
            case Paused(reason=reason):
                raise TemporaryError("nothing can be decided", reason)
            case Left():
                await self._leave(_request_in(event), verdict)
            case Wait():
                await self._wait(_request_in(event), verdict)
            case Approve() | Deny():
                await self._answered(_request_in(event), verdict)

    async def _leave(self, request: SigningRequest, left: Left) -> None:
        if left.outcome == "superseded":
            self._waiting.left(request.name)
        else:
            self._waiting.decided(request.name, request.node_name)
        if left.outcome == "not-ours":
            self._left_alone.add(request.node_name)
        await self._tell(request, left.outcome, left.reason)

    async def _answered(self, request: SigningRequest, decision: Approve | Deny) -> None:
        self._waiting.decided(request.name, request.node_name)
        if isinstance(decision, Approve):
            self._events.approved(request)
        else:
            self._events.denied(request, decision.check, decision.message)
        outcome = "approved" if isinstance(decision, Approve) else "denied"
        change = f"condition {condition_of(decision).type}: {decision.message}"
        await self._tell(request, outcome, decision.message, changes=(change,))

    async def _wait(self, request: SigningRequest, wait: Wait) -> NoReturn:
        """Raises NotYet."""
        seconds = wait.ends_in_seconds
        waits = WaitingRequest(
            name=request.name,
            uid=request.uid,
            requester=request.node_name,
            reason=wait.reason,
            message=wait.message,
            nodes=_bounded(wait.nodes, request.node_name),
            rivals=wait.rivals[:MOST_RIVALS],
            due=None if seconds is None else self._clock() + seconds,
        )
        self._waiting.waits(waits, self._clock())
        await self._tell(request, "waiting", wait.message)
        raise NotYet(wait.reason, wait.message, retry_after_seconds=max(seconds or 0.0, AGAIN_SECONDS))

    async def _tell(
        self, request: SigningRequest, outcome: str, reason: str, *, changes: tuple[str, ...] = ()
    ) -> None:
        telemetry.annotate(node=request.node_name)
        await self._decisions.publish(request, outcome, reason, changes=changes)

    def _raise_refused(
        self, message: Message, request: SigningRequest, error: FenceFailed | NotFound
    ) -> NoReturn:
        """It is decided, it is another one, or a message says what is not so: the watcher will tell.

        Raises NotYet at first, and if it still seems pending then, TemporaryError.
        """
        self._waiting.left(request.name)
        again = self._refused.get(request.name) == message.sequence
        if request.name in self._requesters.pending:
            self._refused[request.name] = message.sequence
        if again:
            raise TemporaryError("Kubernetes holds another request than this one, repeatedly", str(error))
        reason = "Kubernetes holds another request, or it is decided"
        raise NotYet(reason, str(error), retry_after_seconds=SETTLES_SECONDS) from error


def _bounded(nodes: frozenset[str], requester: str) -> frozenset[str]:
    """A change of one of the rest is met with when it is looked at again anyway."""
    others = sorted(nodes - {requester})[: _MOST_NODES - 1]
    return frozenset(others) | (nodes & {requester})


def _request_in(event: CsrEnriched | EnrichedCsrGone) -> SigningRequest:
    """What is gone is settled, and gets no other verdict."""
    assert isinstance(event, CsrEnriched)
    return event.request


def _name_of(event: CsrEnriched | EnrichedCsrGone) -> str:
    return event.request.name if isinstance(event, CsrEnriched) else event.name
