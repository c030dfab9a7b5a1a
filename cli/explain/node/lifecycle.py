"""Is the Node's machine gone? What lifecycle has and lacks, by its own code, on one look now. Pure."""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from cli.explain.node.evidence import Evidence
from libs.common.controllers import NODE_LIFECYCLE
from services.lifecycle.decide import Terms, not_ours
from services.lifecycle.evidence import Judged, judge_look, judge_node, known_of
from services.lifecycle.history import judge_history
from services.lifecycle.shutdown import Change, shutdown_change
from services.lifecycle.spot import is_spot, judge_spot

# "later" can only be seen over time, by whoever has looked for so long: the running lifecycle.
Found = Literal["has", "lacks", "later", "unknown"]
Outcome = Literal["not-owned", "kept", "deletable", "unknown"]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence, or what is missing."""

    found: Found
    text: str


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """What lifecycle would make of it."""

    outcome: Outcome
    reason: str
    evidence: tuple[Piece, ...] = ()
    taint: Change | None = None  # shutdown, to be set or removed


def is_gone(evidence: Evidence, terms: Terms) -> Gone:
    """`deletable`: all is there that one look can show, and time would do the rest."""
    foreign = not_ours(evidence.ownership.of(NODE_LIFECYCLE), evidence.node)
    if foreign:
        return Gone(outcome="not-owned", reason=foreign)
    return _as_spot(evidence, terms) or _by_look(evidence, terms)


def _as_spot(evidence: Evidence, terms: Terms) -> Gone | None:
    spot = _judged_as_spot(evidence, terms)
    if spot is None or spot.lacks:
        return None
    pieces = (*_pieces(spot), _grace(terms))
    return Gone(outcome="deletable", reason="; ".join(spot.has), evidence=pieces, taint=_taint(evidence))


def _by_look(evidence: Evidence, terms: Terms) -> Gone:
    node, word = evidence.node, evidence.word
    judged = judge_node(node, evidence.at, not_ready_for=terms.not_ready_for)
    unseen: tuple[Piece, ...] = ()
    later: tuple[Piece, ...] = ()
    if word is None:
        unseen = (Piece(found="unknown", text=f"who answers at its addresses: {evidence.not_asked}"),)
    else:
        look = judge_look(node, word, known_of(evidence.nodes, evidence.words))
        if evidence.not_proven:
            look += Judged(lacks=(evidence.not_proven,))
        judged, later = look + judged, () if look.lacks else _over_time(terms)
    spot = _judged_as_spot(evidence, terms)
    lacks_as_spot = (f"for --delete-preempted-gcp-spot: {text}" for text in (spot.lacks if spot else ()))
    outcome: Outcome = "kept" if judged.lacks else "unknown" if unseen else "deletable"
    reasons = {"kept": judged.lacks, "unknown": ("its machine was not asked",), "deletable": judged.has}
    return Gone(
        outcome=outcome,
        reason="; ".join(reasons[outcome]),
        evidence=(*unseen, *_pieces(judged), *later, *_all("lacks", lacks_as_spot)),
        taint=_taint(evidence),
    )


def _judged_as_spot(evidence: Evidence, terms: Terms) -> Judged | None:
    """By the rule for GCP spot machines, where it is on and about this Node."""
    is_about = terms.gcp_spot and is_spot(evidence.node)
    return judge_spot(evidence.node, evidence.at) if is_about else None


def _taint(evidence: Evidence) -> Change | None:
    return shutdown_change(evidence.node, evidence.word)


def _pieces(judged: Judged) -> Iterator[Piece]:
    yield from _all("has", judged.has)
    yield from _all("lacks", judged.lacks)


def _all(found: Found, texts: Iterable[str]) -> Iterator[Piece]:
    return (Piece(found=found, text=text) for text in texts)


def _over_time(terms: Terms) -> tuple[Piece, ...]:
    history = judge_history(None, looks=terms.looks, span=terms.span)
    minutes = f"{terms.span.total_seconds() / 60:g} min"
    over = (f"{text}, over {minutes}: this is one" for text in history.lacks)
    return (*_all("later", over), _grace(terms))


def _grace(terms: Terms) -> Piece:
    minutes = f"{terms.grace.total_seconds() / 60:g} min"
    text = f"{minutes} since lifecycle started and leads, and room below its cap of deletions per hour"
    return Piece(found="later", text=text)
