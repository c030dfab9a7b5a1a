"""What metadata knows of one kubelet's request for a certificate, and how that changes.

Times are monotonic seconds that we noted ourselves: no clock of another machine takes part in a judgement.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.bus import Message
from libs.common.delivery import backoff_seconds, doubled
from libs.common.events import CsrEnriched, CsrGone, CsrObserved, EnrichedCsr, EnrichedCsrGone
from libs.common.machine import MachineFacts
from libs.common.signing_request import SigningRequest, same_request_to_us
from services.metadata import schedule
from services.metadata.known import LONG_AGO, NEVER
from services.metadata.next_step import same_facts
from services.metadata.schedule import Pace

FRESH_SECONDS: Final = 10.0  # how much older than the request a look may be
_AGAIN_FIRST_SECONDS: Final = 10.0  # after facts were said that have not led to a decision
_AGAIN_CAP_SECONDS: Final = 60.0


class KnownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one request, but what is known of its Node."""

    observed: CsrObserved | CsrGone  # the newest observation
    sequence: int  # its place in the stream
    headers: Mapping[str, str] = {}  # its trace context
    first_version: int = 0  # the request's resourceVersion when we first heard of it
    heard: float  # when we first heard of this request: it had been observed by then
    fresh_from: float  # a look that began before proves nothing
    answered: bool = False  # something was said since the newest observation came
    void: bool = False  # it is of a stream that is no more; the present one has not named the request yet

    said: EnrichedCsr | None = None  # what we, or our predecessor, said last
    repeat_due: float = NEVER  # when it is said again, unchanged
    looks: int = 0  # asked for because what was said has not led to a decision
    look_due: float  # when the next of them is
    unsaid: int = 0  # in a row, refusals of the bus
    say_after: float = LONG_AGO
    unsayable: MachineFacts | None = None  # with these facts the message is larger than any may be

    dialled: frozenset[str] = frozenset()  # contested addresses at which the Node's own machine answered
    dialled_for: MachineFacts | None = None  # which facts had attested them
    dialled_uid: str = ""  # of the Node that it was then
    dial_due: float = LONG_AGO  # when it is judged again whether to dial

    @property
    def uid(self) -> str:
        return uid_of(self.observed)

    @property
    def pending(self) -> SigningRequest | None:
        """The request while nobody has decided it; None when it is decided, gone, or no business of ours."""
        request = self.observed.request if isinstance(self.observed, CsrObserved) else None
        return request if request is not None and is_ours(request) else None

    @property
    def node_name(self) -> str:
        """Of the Node whose identity asks, "" once the request is gone."""
        return self.observed.request.node_name if isinstance(self.observed, CsrObserved) else ""


def is_ours(request: SigningRequest) -> bool:
    """Whether it waits for a decision that depends on what a machine says."""
    return request.is_kubelet_serving and request.pending


def is_older(one: KnownRequest, other: KnownRequest) -> bool:
    """Whether `other` is a newer pending request of the same requester: csr answers only the newest.

    csr orders requests by the resourceVersion at which it first heard of each. What was written to a request
    later makes that version larger for a replica that started later, so only a clear order counts.
    """
    mine, theirs = one.pending, other.pending
    if mine is None or theirs is None or other.void or mine.uid == theirs.uid:
        return False
    if (mine.node_name, mine.is_by_node) != (theirs.node_name, theirs.is_by_node):
        return False
    return mine.version < other.first_version and _created(mine) <= _created(theirs)


def _created(request: SigningRequest) -> float:
    created = request.metadata.creation_timestamp
    return created.timestamp() if created is not None else 0.0


def uid_of(event: CsrObserved | CsrGone) -> str:
    """Of the request that an observation is about."""
    return event.uid if isinstance(event, CsrGone) else event.request.uid


def first_seen(
    message: Message,
    observed: CsrObserved | CsrGone,
    heard: EnrichedCsr | None,
    *,
    heard_again_in: float,
    now: float,
) -> KnownRequest:
    """A request that we know nothing of but what the stream holds (`heard`), and when it is said again."""
    return KnownRequest(
        observed=observed,
        sequence=message.sequence,
        headers=message.headers,
        first_version=observed.request.version if isinstance(observed, CsrObserved) else 0,
        heard=now,
        fresh_from=now - FRESH_SECONDS,
        said=heard,
        repeat_due=now + heard_again_in,
        look_due=now + _again(0),
    )


def observe(
    known: KnownRequest, message: Message, observed: CsrObserved | CsrGone, *, now: float, pace: Pace
) -> KnownRequest:
    """Newer word of the watcher. Another uid is another request."""
    if uid_of(observed) != known.uid:
        return first_seen(message, observed, known.said, heard_again_in=pace.repeat, now=now)
    if message.sequence <= known.sequence and not known.void:
        return known  # read again from the beginning, after the connection was lost
    return msgspec.structs.replace(
        known,
        observed=observed,
        sequence=message.sequence,
        headers=message.headers,
        answered=False,
        void=False,
        say_after=LONG_AGO if isinstance(observed, CsrGone) else known.say_after,
    )


def made_void(known: KnownRequest) -> KnownRequest:
    """The stream is another one: what was said is lost."""
    return msgspec.structs.replace(known, void=True, said=None, repeat_due=NEVER, sequence=0)


def unheard(known: KnownRequest) -> KnownRequest:
    """What was said is lost, the observation is not."""
    return known if known.said is None else msgspec.structs.replace(known, said=None, repeat_due=NEVER)


# ---- what became of something said


def said(known: KnownRequest, event: EnrichedCsr, *, now: float, pace: Pace, jitter: float) -> KnownRequest:
    """The stream holds it, or something newer. A repetition puts off no look."""
    is_repetition = known.said is not None and says_the_same(known.said, event)
    return msgspec.structs.replace(
        known,
        said=event,
        repeat_due=now + schedule.repeat_after(pace, jitter),
        look_due=known.look_due if is_repetition else now + _again(known.looks),
        answered=event.observed_sequence >= known.sequence,
        unsaid=0,
        say_after=LONG_AGO,
    )


def not_said(known: KnownRequest, *, now: float, jitter: float) -> KnownRequest:
    """The bus did not take it."""
    wait = backoff_seconds(known.unsaid + 1, jitter)
    return msgspec.structs.replace(known, unsaid=known.unsaid + 1, say_after=now + wait)


def bus_is_back(known: KnownRequest, *, now: float, jitter: float) -> KnownRequest:
    """What could not be said may be said, within a second."""
    return msgspec.structs.replace(known, unsaid=0, say_after=now + jitter) if known.unsaid else known


def too_large(known: KnownRequest, event: EnrichedCsr) -> KnownRequest:
    """No message may be that large: it is told without the facts. Without any it is not told at all."""
    facts = event.facts if isinstance(event, CsrEnriched) else None
    return msgspec.structs.replace(
        known, unsayable=facts or known.unsayable, say_after=LONG_AGO if facts is not None else NEVER
    )


def contradicted(
    known: KnownRequest, mine: EnrichedCsr, theirs: EnrichedCsr | None, *, now: float
) -> KnownRequest:
    """Somebody else spoke of the same observation. Who has facts is right, of two the one who looks last."""
    if theirs is None or _weight(theirs) < _weight(mine):
        return msgspec.structs.replace(known, said=theirs)
    if not isinstance(mine, CsrEnriched) or mine.facts is None or _says_as_much(mine, theirs):
        return msgspec.structs.replace(known, said=mine)
    return msgspec.structs.replace(known, said=theirs, fresh_from=now)


def overheard(known: KnownRequest, theirs: EnrichedCsr) -> KnownRequest:
    """The stream holds somebody else's newer word by now: if it says less than ours, ours is said again."""
    if known.said is None or _weight(theirs) < _weight(known.said):
        return msgspec.structs.replace(known, said=theirs)
    return known


def says_the_same(one: EnrichedCsr, other: EnrichedCsr) -> bool:
    """Whether two messages tell consumers the same: times, order and counts apart."""
    match one, other:
        case CsrEnriched(), CsrEnriched():
            same = (one.node_uid, one.answered_at, one.without_talos) == (
                other.node_uid,
                other.answered_at,
                other.without_talos,
            )
            return (
                same
                and _kind_of_fault(one) == _kind_of_fault(other)
                and same_facts(one.facts, other.facts)
                and same_request_to_us(one.request, other.request)
            )
        case EnrichedCsrGone(), EnrichedCsrGone():
            return one.uid == other.uid
        case _:
            return False


def _says_as_much(mine: CsrEnriched, theirs: EnrichedCsr) -> bool:
    """They may have dialled where we have not yet."""
    if not isinstance(theirs, CsrEnriched) or not set(theirs.answered_at) >= set(mine.answered_at):
        return False
    return says_the_same(msgspec.structs.replace(mine, answered_at=theirs.answered_at), theirs)


def _kind_of_fault(event: CsrEnriched) -> tuple[str, str]:
    return (event.fault.kind, event.fault.step) if event.fault else ("", "")


def _weight(event: EnrichedCsr) -> int:
    if isinstance(event, EnrichedCsrGone):
        return 3
    return 2 if event.facts is not None else 1 if event.fault is not None else 0


# ---- what it has led to


def asked_to_look(known: KnownRequest, *, now: float) -> KnownRequest:
    """A look was asked for; the next one later, should this one not lead to a decision."""
    if now < known.look_due:
        return known
    looks = known.looks + 1
    return msgspec.structs.replace(known, looks=looks, look_due=now + _again(looks))


def dialling(known: KnownRequest, facts: MachineFacts, node_uid: str) -> KnownRequest:
    """The contested addresses of these facts are being dialled; what was answered before holds meanwhile."""
    held = known.dialled if known.dialled_uid == node_uid else frozenset()
    return msgspec.structs.replace(
        known, dialled=held, dialled_for=facts, dialled_uid=node_uid, dial_due=NEVER
    )


def dialled(known: KnownRequest, answered: frozenset[str], *, again_at: float) -> KnownRequest:
    """At these contested addresses the Node's own machine answered."""
    return msgspec.structs.replace(known, dialled=answered, dial_due=again_at)


def _again(looks: int) -> float:
    return doubled(looks + 1, first=_AGAIN_FIRST_SECONDS, cap=_AGAIN_CAP_SECONDS)
