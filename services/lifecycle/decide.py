"""Whether a Node is to be deleted: all of the evidence at once, or it stays."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.cloud_config.rule import Ownership
from libs.common.node import Node
from libs.common.ownership import why_not_owned
from services.lifecycle.evidence import Judged, Known, Word, judge_look, judge_node
from services.lifecycle.history import History, judge_history
from services.lifecycle.spot import is_spot, judge_spot

REPLACED: Final = "replaced"  # the kinds of evidence, for metrics
SPOT: Final = "gcp-spot"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a deletion takes."""

    not_ready_for: timedelta = timedelta(minutes=5)  # longer than that
    looks: int = 3
    span: timedelta = timedelta(minutes=10)  # from the first look to the last
    grace: timedelta = timedelta(minutes=10)  # since our own start, and since we lead
    last_look_within: timedelta = timedelta(minutes=2)  # what was seen longer ago may be over
    gcp_spot: bool = False  # --delete-preempted-gcp-spot


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What we ourselves are."""

    running: timedelta  # since our start
    leading: timedelta | None  # since we lead; None = we do not
    paused: str = ""  # why nothing may be written, in words


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about one Node."""

    node: Node
    word: Word | None = None  # metadata's last
    history: History | None = None
    known: Known = Known()


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """It is proven that the machine is gone."""

    kind: str  # REPLACED or SPOT
    reason: str


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """It is not."""

    judged: Judged
    as_spot: Judged = (
        Judged()
    )  # what the rule for GCP spot machines lacks, where it is on and about this Node

    @property
    def reason(self) -> str:
        """What is missing first, then what there is."""
        lacks, has = "; ".join(self.judged.lacks), "; ".join(self.judged.has)
        told = f"kept, for want of: {lacks}" + (f". There is: {has}" if has else "")
        spot = "; ".join(self.as_spot.lacks)
        return told + (f". For --delete-preempted-gcp-spot: {spot}" if spot else "")


def decide(case: Case, terms: Terms, standing: Standing, *, now: datetime, at: float) -> Delete | Keep:
    """Delete only if nothing is missing. `now` is UTC, `at` monotonic seconds of the clock of the looks."""
    ours = judge_standing(standing, terms)
    spot = Judged()
    if terms.gcp_spot and is_spot(case.node):
        spot = judge_spot(case.node, now) + ours
        if not spot.lacks:
            return Delete(kind=SPOT, reason="; ".join(spot.has))
    judged = judge_case(case, terms, now=now, at=at) + ours
    if judged.lacks:
        return Keep(judged=judged, as_spot=spot)
    return Delete(kind=REPLACED, reason="; ".join(judged.has))


def judge_case(case: Case, terms: Terms, *, now: datetime, at: float) -> Judged:
    """The evidence that the Node's machine was replaced, and what it lacks."""
    look = judge_look(case.node, case.word, case.known)
    judged = look + judge_node(case.node, now, not_ready_for=terms.not_ready_for)
    if not case.history and look.lacks:
        return judged  # there is nothing yet that could have held for some time
    history = case.history if case.history and case.history.uid == case.node.uid else None
    judged += judge_history(history, looks=terms.looks, span=terms.span)
    if history and _since(history, now=now, at=at) > terms.last_look_within:
        judged += Judged(lacks=("a look of just now, by the clocks of both metadata and lifecycle",))
    return judged


def _since(history: History, *, now: datetime, at: float) -> timedelta:
    """How long ago the last look was, by whichever clock says more: what is heard now may have been on its
    way for long.
    """
    return max(timedelta(seconds=at - history.last.heard), now - history.last.ended)


def judge_standing(standing: Standing, terms: Terms) -> Judged:
    """Whether we ourselves may judge others."""
    minutes = f"{terms.grace.total_seconds() / 60:g} min"
    lacks = []
    if standing.paused:
        lacks.append(standing.paused)
    if standing.running < terms.grace:
        lacks.append(f"{minutes} since the start of lifecycle itself")
    if standing.leading is None:
        lacks.append("the Lease: another lifecycle leads, or none")
    elif standing.leading < terms.grace:
        lacks.append(f"{minutes} since this lifecycle leads")
    return Judged(lacks=tuple(lacks))


def not_ours(ownership: Ownership, node: Node) -> str:
    """Why this Node is left alone, in words; "" when it is ours for certain."""
    if ownership.provider_id_schemes and not node.spec.provider_id:
        return "ownership.providerIDSchemes is set and it has no providerID: whose it is, is not known"
    return why_not_owned(ownership, node)
