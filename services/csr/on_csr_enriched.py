"""A node's request and what its machine says of itself: approve it, deny it, or wait for what is missing."""

from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from libs.common import telemetry
from libs.common.bus import Message
from libs.common.cloud_config.rule import Ownership
from libs.common.decisions import Decisions
from libs.common.delivery import NotYet, PermanentError, TemporaryError
from libs.common.events import CsrEnriched, CsrObserved, EnrichedCsrGone
from libs.common.flow_table import FlowTable
from libs.common.kube_api.errors import FenceFailed, NotFound
from libs.common.ownership import why_not_owned
from libs.common.signing_request import SigningRequest, SigningRequestCondition
from libs.common.subjects import ENRICHED_CSR, OBSERVED_CSR, name_in
from libs.common.watch_flow import WatchFlow
from services.csr.approvals_api import ApprovalsApi
from services.csr.budget import BURST, Budget
from services.csr.claims import Claims
from services.csr.decide import Approve, Deny, Ignore, Judgement, Policy, Wait, decide
from services.csr.node_events import MOST_RIVALS, NodeEvents
from services.csr.requesters import Requesters
from services.csr.waiting import WaitingRequest, WaitingRequests

AGAIN_SECONDS: Final = 30.0  # a safety net: what a request waits for is heard of when it happens
SETTLES_SECONDS: Final = 5.0  # the watcher has told by then what Kubernetes holds instead
_BELIEVED_SECONDS: Final = 60.0  # what we have written; an etcd restored from a backup goes back
_MOST_NODES: Final = 64  # that one wait is ended by: an address that everybody claims must not cost a square
_TOO_MANY: Final = "TooManyRequests"
_TOO_MANY_TEXT: Final = (
    f"more than {BURST} requests of this node were answered lately, one more is each minute; other nodes "
    "are not concerned"
)


class OnCsrEnriched:
    """Gather the newest view, decide, write, tell. What is gone or decided by now gets nothing."""

    def __init__(
        self,
        *,
        table: FlowTable,
        flow: WatchFlow,
        requesters: Requesters,
        waiting: WaitingRequests,
        claims: Claims,
        approvals: ApprovalsApi,
        decisions: Decisions,
        events: NodeEvents,
        policy: Callable[[], Policy],
        ownership: Callable[[], Ownership],
        paused: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        """`paused` says why nothing may be written for now, "" if it may.

        `clock` is monotonic, in seconds.
        """
        self._table = table
        self._flow = flow
        self._requesters = requesters
        self._waiting = waiting
        self._claims = claims
        self._approvals = approvals
        self._decisions = decisions
        self._events = events
        self._policy = policy
        self._ownership = ownership
        self._paused = paused
        self._clock = clock
        self._left_alone: set[str] = set()  # Nodes, since they last changed
        self._budget = Budget()
        self._written: dict[str, tuple[str, float]] = {}  # request -> uid, when
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
        settled = self._why_nothing_is_left(message, event)
        if settled or isinstance(event, EnrichedCsrGone):
            telemetry.annotate(outcome="settled", reason=settled or "the request is gone")
            return
        if reason := self._paused():
            raise TemporaryError(reason)
        await self._decide(message, event)

    def forget(self, name: str) -> None:
        """The request is gone, or decided."""
        self._written.pop(name, None)
        self._refused.pop(name, None)

    def forget_all(self) -> None:
        """Another stream: sequences mean something else from here on."""
        self._written.clear()
        self._refused.clear()
        self._left_alone.clear()

    def was_left_alone(self, node: str) -> bool:
        """Whether a request of that Node, which has changed, was none of ours; said once of each change."""
        is_so = node in self._left_alone
        self._left_alone.discard(node)
        return is_so

    # ---- gather

    def _why_nothing_is_left(self, message: Message, event: CsrEnriched | EnrichedCsrGone) -> str:
        if event.incarnation != self._table.incarnation:
            return "it was written for another incarnation of the stream"
        newest = self._table.last(message.subject)
        if newest is not None and newest.sequence > message.sequence:
            return "newer word of this request is on its way"
        if isinstance(event, EnrichedCsrGone):
            return ""
        observed = self._table.last(f"{OBSERVED_CSR}.{event.request.name}")
        if observed is None or not isinstance(observed.event, CsrObserved):
            return "the request is gone"
        if observed.event.request.uid != event.request.uid:
            return "another request has its name by now"
        if not observed.event.request.pending:
            return "the request is decided"
        uid, at = self._written.get(event.request.name, ("", 0.0))
        is_ours = uid == event.request.uid and self._clock() - at < _BELIEVED_SECONDS
        return "it was decided here a moment ago" if is_ours else ""

    def _why_not_ours(self, request: SigningRequest) -> str:
        node = self._claims.node(request.node_name)
        return why_not_owned(self._ownership(), node) if node is not None else ""

    # ---- decide, write, tell

    async def _decide(self, message: Message, event: CsrEnriched) -> None:
        request = event.request
        if foreign := self._why_not_ours(request):
            self._left_alone.add(request.node_name)
            self._waiting.decided(request.name, request.node_name)
            await self._tell(request, "not-ours", foreign)
            return
        if newer := self._requesters.superseded_by(request.name):
            self._waiting.left(request.name)
            reason = f"{newer} of the same node is newer: older ones are not answered"
            await self._tell(request, "superseded", reason)
            return
        if seconds := self._budget.seconds_until(request.node_name, self._clock()):
            wait = Wait(reason=_TOO_MANY, message=_TOO_MANY_TEXT, nodes=frozenset())
            await self._wait(request, wait, max(seconds, AGAIN_SECONDS), due=self._clock() + seconds)
        judgement = decide(event, self._claims, self._policy())
        match judgement.decision:
            case Ignore(reason=reason):
                self._waiting.decided(request.name, request.node_name)
                await self._tell(request, "ignored", reason)
            case Wait() as wait if event.facts is not None or event.without_talos:
                await self._wait(request, wait, AGAIN_SECONDS)
            case Wait() as wait:  # no Node that changes ends it, but what metadata says of it next
                await self._wait(request, msgspec.structs.replace(wait, nodes=frozenset()), AGAIN_SECONDS)
            case Deny(message=why) if self._is_nobodys(request):
                await self._wait(request, _before_its_node(request, why), AGAIN_SECONDS)
            case Approve() | Deny():
                await self._write(message, event, judgement)

    def _is_nobodys(self, request: SigningRequest) -> bool:
        """Whether its Node may turn out to be another's: there is none yet, and not every Node is ours."""
        return self._ownership().is_said and self._claims.node(request.node_name) is None

    async def _write(self, message: Message, event: CsrEnriched, judgement: Judgement) -> None:
        request, decision = event.request, judgement.decision
        assert isinstance(decision, Approve | Deny)
        outcome, kind = ("approved", "Approved") if isinstance(decision, Approve) else ("denied", "Denied")
        condition = SigningRequestCondition(type=kind, reason=decision.reason, message=decision.message)
        try:
            await self._approvals.write(
                request,
                condition,
                without_talos=event.without_talos,
                why_not=lambda: self._why_not_ours(request),
            )
        except (FenceFailed, NotFound) as error:
            self._budget.spend(request.node_name, self._clock())
            self._raise_refused(message, request, error)
        self._budget.spend(request.node_name, self._clock())
        if request.name in self._requesters.pending:  # else the watcher has told of it already
            self._written[request.name] = (request.uid, self._clock())
        self._waiting.decided(request.name, request.node_name)
        if isinstance(decision, Approve):
            self._events.approved(request)
        else:
            self._events.denied(request, decision.check, decision.message)
        said = decision.message
        await self._tell(request, outcome, said, changes=(f"condition {kind}: {said}",))

    async def _wait(
        self, request: SigningRequest, wait: Wait, seconds: float, *, due: float | None = None
    ) -> NoReturn:
        """Raises NotYet."""
        waits = WaitingRequest(
            name=request.name,
            uid=request.uid,
            requester=request.node_name,
            reason=wait.reason,
            message=wait.message,
            nodes=_bounded(wait.nodes, request.node_name),
            rivals=wait.rivals[:MOST_RIVALS],
            due=due,
        )
        self._waiting.waits(waits, self._clock())
        await self._tell(request, "waiting", wait.message)
        raise NotYet(wait.reason, wait.message, retry_after_seconds=seconds)

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


def _before_its_node(request: SigningRequest, why: str) -> Wait:
    """A refusal is final, and a Node that does not exist yet may be another's."""
    text = (
        f"Node {request.node_name} does not exist, so whose it will be is not known: not denied yet, though: "
    )
    return Wait(reason="node", message=text + why, nodes=frozenset({request.node_name}))


def _bounded(nodes: frozenset[str], requester: str) -> frozenset[str]:
    """A change of one of the rest is met with when it is looked at again anyway."""
    others = sorted(nodes - {requester})[: _MOST_NODES - 1]
    return frozenset(others) | (nodes & {requester})


def _name_of(event: CsrEnriched | EnrichedCsrGone) -> str:
    return event.request.name if isinstance(event, CsrEnriched) else event.name
