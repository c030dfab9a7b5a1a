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
    node, word = evidence.node, evidence.word
    foreign = not_ours(evidence.ownership.of(NODE_LIFECYCLE), node)
    if foreign:
        return Gone(outcome="not-owned", reason=foreign)
    taint = shutdown_change(node, word)
    about_node = judge_node(node, evidence.at, not_ready_for=terms.not_ready_for)
    if terms.gcp_spot and is_spot(node):
        spot = judge_spot(node, evidence.at)
        if not spot.lacks:
            pieces = (*_pieces(spot), _grace(terms))
            return Gone(outcome="deletable", reason="; ".join(spot.has), evidence=pieces, taint=taint)
    if word is None:
        unasked = Piece(found="unknown", text=f"who answers at its addresses: {evidence.not_asked}")
        pieces = (unasked, *_pieces(about_node))
        kept = bool(about_node.lacks)
        reason = about_node.lacks[0] if kept else "its machine was not asked"
        return Gone(outcome="kept" if kept else "unknown", reason=reason, evidence=pieces, taint=taint)
    look = judge_look(node, word, known_of(evidence.nodes, evidence.words))
    if evidence.not_proven:
        look += Judged(lacks=(evidence.not_proven,))
    judged = look + about_node
    later = () if look.lacks else _over_time(terms)
    outcome: Outcome = "kept" if judged.lacks else "deletable"
    return Gone(
        outcome=outcome,
        reason=judged.lacks[0] if judged.lacks else "; ".join(judged.has),
        evidence=(*_pieces(judged), *later),
        taint=taint,
    )


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
