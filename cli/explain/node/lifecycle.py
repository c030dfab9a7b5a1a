"""Is the Node's machine gone? What lifecycle has and lacks, by its own code, on one look now. Pure."""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from cli.explain.node.evidence import Evidence
from libs.common.controllers import NODE_LIFECYCLE
from services.lifecycle.decide import DeletionPolicy, why_excluded
from services.lifecycle.evidence import Assessment, assess_node, assess_report, build_machine_index
from services.lifecycle.gcp_spot import assess_gcp_spot, is_gcp_spot
from services.lifecycle.poll_history import assess_history
from services.lifecycle.shutdown_taint import ShutdownTaintChange, plan_shutdown_taint

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
    taint: ShutdownTaintChange | None = None  # shutdown, to be set or removed


def is_gone(evidence: Evidence, terms: DeletionPolicy) -> Gone:
    """`deletable`: all is there that one look can show, and time would do the rest."""
    foreign = why_excluded(evidence.ownership.for_controller(NODE_LIFECYCLE), evidence.node)
    if foreign:
        return Gone(outcome="not-owned", reason=foreign)
    return _as_spot(evidence, terms) or _by_look(evidence, terms)


def _as_spot(evidence: Evidence, terms: DeletionPolicy) -> Gone | None:
    spot = _judged_as_spot(evidence, terms)
    if spot is None or spot.missing:
        return None
    pieces = (*_pieces(spot), _grace(terms))
    return Gone(outcome="deletable", reason="; ".join(spot.proven), evidence=pieces, taint=_taint(evidence))


def _by_look(evidence: Evidence, terms: DeletionPolicy) -> Gone:
    node, word = evidence.node, evidence.word
    judged = assess_node(node, evidence.at, min_not_ready=terms.min_not_ready)
    unseen: tuple[Piece, ...] = ()
    later: tuple[Piece, ...] = ()
    if word is None:
        unseen = (Piece(found="unknown", text=f"who answers at its addresses: {evidence.not_asked}"),)
    else:
        look = assess_report(node, word, build_machine_index(evidence.nodes, evidence.words))
        if evidence.not_proven:
            look += Assessment(missing=(evidence.not_proven,))
        judged, later = look + judged, () if look.missing else _over_time(terms)
    spot = _judged_as_spot(evidence, terms)
    lacks_as_spot = (f"for --delete-preempted-gcp-spot: {text}" for text in (spot.missing if spot else ()))
    outcome: Outcome = "kept" if judged.missing else "unknown" if unseen else "deletable"
    reasons = {"kept": judged.missing, "unknown": ("its machine was not asked",), "deletable": judged.proven}
    return Gone(
        outcome=outcome,
        reason="; ".join(reasons[outcome]),
        evidence=(*unseen, *_pieces(judged), *later, *_all("lacks", lacks_as_spot)),
        taint=_taint(evidence),
    )


def _judged_as_spot(evidence: Evidence, terms: DeletionPolicy) -> Assessment | None:
    """By the rule for GCP spot machines, where it is on and about this Node."""
    is_about = terms.deletes_gcp_spot and is_gcp_spot(evidence.node)
    return assess_gcp_spot(evidence.node, evidence.at) if is_about else None


def _taint(evidence: Evidence) -> ShutdownTaintChange | None:
    return plan_shutdown_taint(evidence.node, evidence.word)


def _pieces(judged: Assessment) -> Iterator[Piece]:
    yield from _all("has", judged.proven)
    yield from _all("lacks", judged.missing)


def _all(found: Found, texts: Iterable[str]) -> Iterator[Piece]:
    return (Piece(found=found, text=text) for text in texts)


def _over_time(terms: DeletionPolicy) -> tuple[Piece, ...]:
    history = assess_history(None, min_polls=terms.min_polls, min_span=terms.min_span)
    minutes = f"{terms.min_span.total_seconds() / 60:g} min"
    over = (f"{text}, over {minutes}: this is one" for text in history.missing)
    return (*_all("later", over), _grace(terms))


def _grace(terms: DeletionPolicy) -> Piece:
    minutes = f"{terms.startup_grace.total_seconds() / 60:g} min"
    text = f"{minutes} since lifecycle started and leads, and room below its cap of deletions per hour"
    return Piece(found="later", text=text)
