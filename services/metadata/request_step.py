"""What follows from what is known of a request and of its Node: say it, look, dial, wait, or be done."""

from datetime import datetime
from typing import Final

import msgspec

from libs.common.events import CsrEnriched, CsrGone, EnrichedCsr, EnrichedCsrGone
from libs.common.machine import MachineFacts, MachineFault
from libs.common.node import PROVIDED_NODE_IP
from libs.common.signing_request import SigningRequest
from services.metadata.known import NEVER, Known
from services.metadata.links import STEP
from services.metadata.next_step import Done, Wait
from services.metadata.requests import KnownRequest, says_the_same

NO_NODE_PATIENCE_SECONDS: Final = 1.0  # a Node and its first request come at the same time, in either order
_NOT_ASKED: Final = MachineFault(
    kind="bad_node_ip",
    step=STEP,
    message=f"the Node has no annotation {PROVIDED_NODE_IP}: its machine is not asked",
)


class SayOfRequest(msgspec.Struct, frozen=True):
    """Publish this."""

    event: EnrichedCsr


class AskNode(msgspec.Struct, frozen=True):
    """Have the Node's machine looked at now."""


class DialBack(msgspec.Struct, frozen=True):
    """See whether these facts' addresses are contested, and who answers there."""

    request: SigningRequest
    facts: MachineFacts
    node_uid: str


RequestStep = SayOfRequest | AskNode | DialBack | Wait | Done


class Attested(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said of a request now, apart from its place in the order."""

    node_uid: str = ""
    facts: MachineFacts | None = None
    fault: MachineFault | None = None
    without_talos: bool = False


def next_step(
    known: KnownRequest,
    node: Known | None,
    *,
    without_talos: bool,
    superseded: bool = False,
    now: float,
    at: datetime,
) -> RequestStep:
    """`node`: what is known of the Node whose identity asks. `now` is monotonic, `at` the same as a time.

    `superseded`: its requester has a newer pending request. Only that one carries facts: they are large, and
    csr does not judge this one.
    """
    if known.void:
        return Wait(NEVER)
    if isinstance(known.observed, CsrGone):
        return _gone(known, known.observed, now)
    if known.pending is None:
        return Done()
    if not without_talos and not superseded and node is not None and needs_look(known, node, now=now):
        return AskNode()
    if superseded and not without_talos:
        found: Attested | Wait = Attested()
    else:
        found = attested(known, node, without_talos=without_talos, now=now)
    if isinstance(found, Wait):
        return found
    event = _enriched(known, known.pending, found, at)
    if known.said is None or not says_the_same(known.said, event) or now >= known.repeat_due:
        return SayOfRequest(event) if now >= known.say_after else Wait(known.say_after)
    if found.facts is None or node is None:
        return Wait(known.repeat_due)
    if known.dialled_for is not found.facts or now >= known.dial_due:
        return DialBack(known.pending, found.facts, found.node_uid)
    look_due = known.look_due if _may_ask(node, now) else NEVER
    return Wait(min(known.repeat_due, known.dial_due, look_due))


def attested(known: KnownRequest, node: Known | None, *, without_talos: bool, now: float) -> Attested | Wait:
    """What the machine says or why it does not; Wait while that is about to be known."""
    if without_talos:
        return Attested(without_talos=True)
    if node is None or node.node is None:
        patience = known.heard + NO_NODE_PATIENCE_SECONDS
        return Attested() if now >= patience or known.said is not None else Wait(patience)
    if node.void:
        return Wait(NEVER)
    if node.facts is not None and node.facts is known.unsayable:
        fault = MachineFault(kind="invalid", step="facts", message="the facts make the message too large")
        return Attested(node_uid=node.uid, fault=fault)
    if node.facts is not None:
        return Attested(node_uid=node.uid, facts=node.facts) if is_fresh(known, node) else Wait(NEVER)
    fault_or_none = node.fault or (None if node.addresses else _NOT_ASKED)
    return Attested(node_uid=node.uid, fault=fault_or_none) if fault_or_none else Wait(NEVER)


def is_fresh(known: KnownRequest, node: Known) -> bool:
    """Whether what is known of the machine is a proof for this request: no older, or under a live watch."""
    return node.looked >= known.fresh_from or (node.watched and node.changed_at < node.looked)


def needs_look(known: KnownRequest, node: Known, *, now: float) -> bool:
    """Whether nothing less than a look that nobody has asked for yet will do.

    What is stale proves nothing, unless a watch has one look again anyway. Where none tells of changes, a
    request that stays undecided is looked after: it may wait for an address that the machine has by now.
    """
    if not _may_ask(node, now):
        return False
    return not is_fresh(known, node) or (node.facts is not None and now >= known.look_due)


def _may_ask(node: Known, now: float) -> bool:
    """Whether a look can be asked for that is not due anyway: whatever comes of that one wakes us."""
    return bool(node.addresses) and node.due > now and not node.watched and not node.void


def _gone(known: KnownRequest, observed: CsrGone, now: float) -> RequestStep:
    event = EnrichedCsrGone(
        incarnation=observed.incarnation,
        observed_sequence=known.sequence,
        name=observed.name,
        uid=observed.uid,
    )
    if known.said is not None and says_the_same(known.said, event):
        return Done()
    return SayOfRequest(event) if now >= known.say_after else Wait(known.say_after)


def _enriched(known: KnownRequest, request: SigningRequest, found: Attested, at: datetime) -> CsrEnriched:
    return CsrEnriched(
        incarnation=known.observed.incarnation,
        observed_sequence=known.sequence,
        request=request,
        node_uid=found.node_uid,
        facts=found.facts,
        answered_at=_answered_at(known, request, found),
        fault=found.fault,
        without_talos=found.without_talos,
        observed_at=known.observed.observed_at,
        enriched_at=at,
    )


def _answered_at(known: KnownRequest, request: SigningRequest, found: Attested) -> tuple[str, ...]:
    """Where a machine of that very node name answered: an override of the host name proves no name."""
    facts = found.facts
    if facts is None or facts.node_name != request.node_name:
        return ()
    dialled = known.dialled if known.dialled_uid == found.node_uid else frozenset()
    return (facts.node_ip, *sorted(dialled - {facts.node_ip}))
