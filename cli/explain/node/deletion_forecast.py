"""The deletion forecast: lifecycle's evidence that the machine is gone, from one query now. Pure."""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from cli.explain.node.node_evidence import NodeEvidence
from libs.common.contract.controllers import NODE_LIFECYCLE
from services.lifecycle.decide import DeletionPolicy, explain_exclusion
from services.lifecycle.evidence import Assessment, assess_node, assess_report, build_machine_index
from services.lifecycle.gcp_spot import assess_gcp_spot, is_gcp_spot
from services.lifecycle.poll_history import assess_history
from services.lifecycle.shutdown_taint import ShutdownTaintChange, plan_shutdown_taint

# "later": only the running lifecycle can observe it, because it takes time.
EvidenceState = Literal["has", "lacks", "later", "unknown"]
DeletionOutcome = Literal["not-owned", "kept", "deletable", "unknown"]


class EvidenceItem(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence that exists, is missing, or is unknown."""

    state: EvidenceState = msgspec.field(name="found")
    text: str


class DeletionForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of lifecycle about the Node, as far as one query can show."""

    outcome: DeletionOutcome
    reason: str
    evidence: tuple[EvidenceItem, ...] = ()
    taint: ShutdownTaintChange | None = None  # the shutdown taint to set or remove


def forecast_deletion(evidence: NodeEvidence, terms: DeletionPolicy) -> DeletionForecast:
    """Return the forecast.

    `deletable` means that all evidence of one query exists, and only time is missing.
    """
    foreign = explain_exclusion(evidence.ownership.for_controller(NODE_LIFECYCLE), evidence.node)
    if foreign:
        return DeletionForecast(outcome="not-owned", reason=foreign)
    return _forecast_spot(evidence, terms) or _forecast_by_query(evidence, terms)


def _forecast_spot(evidence: NodeEvidence, terms: DeletionPolicy) -> DeletionForecast | None:
    spot = _assess_spot(evidence, terms)
    if spot is None or spot.missing:
        return None
    pieces = (*_list_evidence(spot), _describe_grace(terms))
    return DeletionForecast(
        outcome="deletable", reason="; ".join(spot.proven), evidence=pieces, taint=_plan_taint(evidence)
    )


def _forecast_by_query(evidence: NodeEvidence, terms: DeletionPolicy) -> DeletionForecast:
    node, word = evidence.node, evidence.machine_report
    judged = assess_node(node, evidence.at, min_not_ready=terms.min_not_ready)
    unseen: tuple[EvidenceItem, ...] = ()
    later: tuple[EvidenceItem, ...] = ()
    if word is None:
        unseen = (
            EvidenceItem(state="unknown", text=f"machines at its addresses: {evidence.not_queried_reason}"),
        )
    else:
        look = assess_report(node, word, build_machine_index(evidence.nodes, evidence.machine_reports))
        if evidence.inconclusive_reason:
            look += Assessment(missing=(evidence.inconclusive_reason,))
        judged, later = look + judged, () if look.missing else _list_time_conditions(terms)
    spot = _assess_spot(evidence, terms)
    lacks_as_spot = (f"with --delete-preempted-gcp-spot: {text}" for text in (spot.missing if spot else ()))
    outcome: DeletionOutcome = "kept" if judged.missing else "unknown" if unseen else "deletable"
    reasons = {
        "kept": judged.missing,
        "unknown": ("its machine was not queried",),
        "deletable": judged.proven,
    }
    return DeletionForecast(
        outcome=outcome,
        reason="; ".join(reasons[outcome]),
        evidence=(*unseen, *_list_evidence(judged), *later, *_make_items("lacks", lacks_as_spot)),
        taint=_plan_taint(evidence),
    )


def _assess_spot(evidence: NodeEvidence, terms: DeletionPolicy) -> Assessment | None:
    """Assess the rule for GCP spot machines; None if it is off or does not apply to this Node."""
    is_about = terms.deletes_gcp_spot and is_gcp_spot(evidence.node)
    return assess_gcp_spot(evidence.node, evidence.at) if is_about else None


def _plan_taint(evidence: NodeEvidence) -> ShutdownTaintChange | None:
    return plan_shutdown_taint(evidence.node, evidence.machine_report)


def _list_evidence(judged: Assessment) -> Iterator[EvidenceItem]:
    yield from _make_items("has", judged.proven)
    yield from _make_items("lacks", judged.missing)


def _make_items(found: EvidenceState, texts: Iterable[str]) -> Iterator[EvidenceItem]:
    return (EvidenceItem(state=found, text=text) for text in texts)


def _list_time_conditions(terms: DeletionPolicy) -> tuple[EvidenceItem, ...]:
    history = assess_history(None, min_polls=terms.min_polls, min_span=terms.min_span)
    minutes = f"{terms.min_span.total_seconds() / 60:g} min"
    over = (f"{text}, over {minutes}: this is the first" for text in history.missing)
    return (*_make_items("later", over), _describe_grace(terms))


def _describe_grace(terms: DeletionPolicy) -> EvidenceItem:
    minutes = f"{terms.startup_grace.total_seconds() / 60:g} min"
    text = f"{minutes} since lifecycle started and leads, and deletions left in this hour"
    return EvidenceItem(state="later", text=text)
