"""The deletion forecast: lifecycle's evidence that the machine is gone, from one query now. Pure."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from cli.explain.node.node_evidence import NodeEvidence
from libs.common.contract.controllers import NODE_LIFECYCLE
from libs.common.contract.events import InstanceReport
from services.lifecycle.core.decide import SOURCES, DeletionPolicy, explain_exclusion
from services.lifecycle.core.evidence import Assessment, assess_node, is_not_ready
from services.lifecycle.core.node_change import NodeChange
from services.lifecycle.core.node_index import DeletionCase, NodeIndex
from services.lifecycle.core.query_history import assess_history
from services.lifecycle.core.shutdown_taint import plan_shutdown_taint

# "later": only the running lifecycle can observe it, because it takes time.
EvidenceState = Literal["has", "lacks", "later", "unknown"]
DeletionOutcome = Literal["not-owned", "kept", "deletable", "unknown"]


class EvidenceItem(msgspec.Struct, frozen=True):
    """One piece of evidence that exists, is missing, or is unknown."""

    state: EvidenceState
    text: str


class DeletionForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of lifecycle about the Node, as far as one query can show."""

    outcome: DeletionOutcome
    reason: str
    evidence: tuple[EvidenceItem, ...] = ()
    taint: NodeChange | None = None  # the shutdown taint to set or remove


def forecast_deletion(evidence: NodeEvidence, terms: DeletionPolicy) -> DeletionForecast:
    """Return the forecast, by the sources of evidence that lifecycle has.

    `deletable` means that all evidence of one query exists, and only time is missing.
    """
    node, at = evidence.node, evidence.at
    if foreign := explain_exclusion(evidence.ownership.for_controller(NODE_LIFECYCLE), node):
        return DeletionForecast(outcome="not-owned", reason=foreign)
    case = build_deletion_case(evidence)
    taint = plan_shutdown_taint(case)
    history = assess_history(None, min_polls=terms.min_polls, min_span=terms.min_span).missing

    def forecast(outcome: DeletionOutcome, why: Sequence[str], *items: EvidenceItem) -> DeletionForecast:
        return DeletionForecast(outcome=outcome, reason="; ".join(why), evidence=items, taint=taint)

    lacks: list[EvidenceItem] = []
    *others, replaced = SOURCES
    for source in others:
        if source.applies(case, terms) and is_not_ready(node):
            found, later = _separate(source.assess(case, terms), history, terms)
            if not found.missing:
                return forecast("deletable", found.proven, *_list_evidence(found), *later)
            lacks += (EvidenceItem("lacks", f"for {source.name}: {text}") for text in found.missing)
    if evidence.report is None:
        found = assess_node(node, at, min_not_ready=terms.min_not_ready)
        unseen = EvidenceItem("unknown", f"machines at its addresses: {evidence.not_queried_reason}")
        items = (unseen, *_list_evidence(found), *lacks)
        if not found.missing:
            return forecast("unknown", ("its machine was not queried",), *items)
        return forecast("kept", found.missing, *items)
    assessed = replaced.assess(case, terms)
    is_shown = not {*history}.isdisjoint(assessed.missing)  # by this report, so only time is missing of it
    found, later = _separate(assessed, history, terms)
    if evidence.inconclusive_reason:
        found += Assessment(missing=(evidence.inconclusive_reason,))
    items = (*_list_evidence(found), *(later if is_shown else ()), *lacks)
    if found.missing:
        return forecast("kept", found.missing, *items)
    return forecast("deletable", found.proven, *items)


def build_deletion_case(evidence: NodeEvidence) -> DeletionCase:
    """Return what lifecycle would know now, without the history that only it has."""
    index = NodeIndex()
    for node in evidence.nodes:
        index.upsert_node(node)
    for event in (evidence.report, *evidence.other_reports):
        if event is not None:
            index.upsert_report(event, 0.0)
    for report in evidence.messages.list_events(InstanceReport):
        index.apply_instance_report(report, 0.0)
    index.forget_histories()
    return index.build_case(evidence.node, evidence.at, 0.0)


def _separate(
    found: Assessment, history: Sequence[str], terms: DeletionPolicy
) -> tuple[Assessment, list[EvidenceItem]]:
    """Return the evidence of one query, and what takes time."""
    span, grace = (f"{each.total_seconds() / 60:g} min" for each in (terms.min_span, terms.startup_grace))
    later = [f"{text}, over {span}: this is the first" for text in history if text in found.missing]
    later.append(f"{grace} since lifecycle started and leads, and deletions left in this hour")
    now = Assessment(proven=found.proven, missing=tuple(t for t in found.missing if t not in history))
    return now, [EvidenceItem("later", text) for text in later]


def _list_evidence(judged: Assessment) -> Iterator[EvidenceItem]:
    yield from (EvidenceItem("has", text) for text in judged.proven)
    yield from (EvidenceItem("lacks", text) for text in judged.missing)
