"""What becomes of an enriched request by all that is known now. Nothing is written without this verdict."""

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from libs.common.bus import Message
from libs.common.cloud_config.rule import Ownership
from libs.common.events import CsrEnriched, CsrObserved, EnrichedCsrGone
from libs.common.flow_table import FlowTable
from libs.common.ownership import why_not_owned
from libs.common.signing_request import SigningRequest
from libs.common.subjects import OBSERVED_CSR
from services.csr.budget import BURST, Budget
from services.csr.claims import Claims
from services.csr.decide import decide
from services.csr.judgement import Approve, Decision, Deny, Ignore, Policy, Wait
from services.csr.metadata_reports import MetadataReports
from services.csr.requesters import Requesters

_BELIEVED_SECONDS: Final = 60.0  # what we have written; an etcd restored from a backup goes back
_TOO_MANY: Final = "TooManyRequests"
_TOO_MANY_TEXT: Final = (
    f"more than {BURST} requests of this node were answered lately, one more is each minute; other nodes "
    "are not concerned"
)


class Settled(msgspec.Struct, frozen=True):
    """Nothing is left to do for this message."""

    reason: str


class Paused(msgspec.Struct, frozen=True):
    """Nothing may be decided now, for any request."""

    reason: str


class Left(msgspec.Struct, frozen=True):
    """The request gets no answer of ours."""

    outcome: Literal["not-ours", "superseded", "ignored"]
    reason: str


Verdict = Settled | Paused | Left | Wait | Approve | Deny


class Judge:
    """Reads the followed state and changes nothing but its memory of what was written."""

    def __init__(
        self,
        *,
        table: FlowTable,
        requesters: Requesters,
        claims: Claims,
        reports: MetadataReports,
        budget: Budget,
        policy: Callable[[], Policy],
        ownership: Callable[[], Ownership],
        why_undecided: Callable[[], tuple[str, ...]],
        clock: Callable[[], float],
    ) -> None:
        """`why_undecided` returns why no request may be decided now; `clock` is monotonic, in seconds."""
        self._table = table
        self._requesters = requesters
        self._claims = claims
        self._reports = reports
        self._budget = budget
        self._policy = policy
        self._ownership = ownership
        self._why_undecided = why_undecided
        self._clock = clock
        self._written: dict[str, tuple[str, float]] = {}  # request -> uid, when

    def verdict(self, message: Message, event: CsrEnriched | EnrichedCsrGone) -> Verdict:
        """By everything that is known at this moment; call it again after each wait."""
        settled = self._why_nothing_is_left(message, event)
        if settled or isinstance(event, EnrichedCsrGone):
            return Settled(settled or "the request is gone")
        if undecided := self._why_undecided():
            return Paused("; ".join(undecided))
        request = event.request
        if foreign := self._why_not_ours(request):
            return Left("not-ours", foreign)
        if newer := self._requesters.superseded_by(request.name):
            return Left("superseded", f"{newer} of the same node is newer: older ones are not answered")
        if seconds := self._budget.seconds_until(request.node_name, self._clock()):
            return Wait(reason=_TOO_MANY, message=_TOO_MANY_TEXT, nodes=frozenset(), ends_in_seconds=seconds)
        return self._of_pending(event, self._decision(message, event))

    def wrote(self, request: SigningRequest) -> None:
        """Note an answer of ours: it is believed until the watcher reports it."""
        self._written[request.name] = (request.uid, self._clock())

    def forget(self, name: str) -> None:
        """The request is gone, or decided."""
        self._written.pop(name, None)

    def forget_all(self) -> None:
        """Everything known is void."""
        self._written.clear()

    def _decision(self, message: Message, event: CsrEnriched) -> Decision:
        decision = decide(event, self._claims, self._policy()).decision
        is_final = isinstance(decision, Approve | Deny)
        why = self._reports.why_too_old(message, self._clock()) if is_final else ""
        if not why:
            return decision
        # Facts that are too old are none. What the request itself forbids stays denied.
        without_facts = msgspec.structs.replace(event, facts=None, fault=None, without_talos=False)
        decision = decide(without_facts, self._claims, self._policy()).decision
        return decision if isinstance(decision, Deny) else Wait(reason="age", message=why, nodes=frozenset())

    def _of_pending(self, event: CsrEnriched, decision: Decision) -> Verdict:
        match decision:
            case Ignore(reason=reason):
                return Left("ignored", reason)
            case Wait() if event.facts is None and not event.without_talos:
                # no Node that changes ends it, but what metadata says of it next
                return msgspec.structs.replace(decision, nodes=frozenset())
            case Deny(message=why) if self._is_nobodys(event.request):
                return _before_its_node(event.request, why)
            case Approve() if not event.without_talos and (why := self._reports.why_not_all_known()):
                return Wait(reason="startup", message=why, nodes=frozenset())
            case _:
                return decision

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

    def _is_nobodys(self, request: SigningRequest) -> bool:
        """Whether its Node may turn out to be another's: there is none yet, and not every Node is ours."""
        return self._ownership().is_said and self._claims.node(request.node_name) is None


def _before_its_node(request: SigningRequest, why: str) -> Wait:
    """A refusal is final, and a Node that does not exist yet may be another's."""
    text = (
        f"Node {request.node_name} does not exist, so whose it will be is not known: not denied yet, though: "
    )
    return Wait(reason="node", message=text + why, nodes=frozenset({request.node_name}))
