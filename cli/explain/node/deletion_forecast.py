"""The deletion forecast: lifecycle's evidence that the machine is gone, from one query now. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from cli.explain.node.node_evidence import NodeEvidence
from libs.common.contract.controllers import NODE_LIFECYCLE
from services.lifecycle.core.decide import DeletionCase, DeletionPolicy, assess_last_round, explain_exclusion
from services.lifecycle.core.evidence import (
    Assessment,
    assess_gcp_spot,
    assess_node,
    assess_report,
    build_machine_index,
    is_gcp_spot,
    is_not_ready,
)
from services.lifecycle.core.node_index import NodeIndex
from services.lifecycle.core.query_history import assess_history
from services.lifecycle.core.shutdown_taint import ShutdownTaintChange, plan_shutdown_taint

# "later": only the running lifecycle can observe it, because it takes time.
EvidenceState = Literal["has", "lacks", "later", "unknown"]
DeletionOutcome = Literal["not-owned", "kept", "deletable", "unknown"]


class EvidenceItem(msgspec.Struct, frozen=True):
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
    spot = Assessment()
    if terms.deletes_gcp_spot and is_gcp_spot(evidence.node):
        spot = assess_gcp_spot(evidence.node, evidence.at)
        if not spot.missing:
            return _make_forecast(
                "deletable", spot.proven, evidence, (*_list_evidence(spot), _describe_grace(terms))
            )
    by_cloud = _assess_by_cloud(evidence, terms)
    if by_cloud is not None and not by_cloud.missing:
        items = (*_list_evidence(by_cloud), *_list_time_conditions(terms))
        return _make_forecast("deletable", by_cloud.proven, evidence, items)
    others = {
        "with --delete-preempted-gcp-spot": spot.missing,
        "by its cloud": by_cloud.missing if by_cloud is not None else (),
    }
    return _forecast_by_query(evidence, terms, others)


def _assess_by_cloud(evidence: NodeEvidence, terms: DeletionPolicy) -> Assessment | None:
    """Assess the last reports of the accounts about a Node that is not Ready; None without any."""
    reports = evidence.last_messages.instance_reports
    if not reports or not is_not_ready(evidence.node):
        return None
    return assess_last_round(build_deletion_case(evidence), terms, evidence.at)


def build_deletion_case(evidence: NodeEvidence) -> DeletionCase:
    """Return what lifecycle would know now, without the history that only it has."""
    index = NodeIndex()
    for node in evidence.nodes:
        index.upsert_node(node)
    for event in evidence.machine_reports:
        index.upsert_report(event, 0.0)
    for report in evidence.last_messages.instance_reports:
        index.apply_instance_report(report, 0.0)
    index.forget_histories()
    return index.build_case(evidence.node, 0.0)


def _forecast_by_query(
    evidence: NodeEvidence, terms: DeletionPolicy, others: Mapping[str, Iterable[str]]
) -> DeletionForecast:
    node, report = evidence.node, evidence.machine_report
    judged = assess_node(node, evidence.at, min_not_ready=terms.min_not_ready)
    unseen: list[EvidenceItem] = []
    later: list[EvidenceItem] = []
    if report is None:
        text = f"machines at its addresses: {evidence.not_queried_reason}"
        unseen.append(EvidenceItem("unknown", text))
    else:
        seen = assess_report(node, report, build_machine_index(evidence.nodes, evidence.machine_reports))
        if evidence.inconclusive_reason:
            seen += Assessment(missing=(evidence.inconclusive_reason,))
        judged = seen + judged
        later += [] if seen.missing else _list_time_conditions(terms)
    items = [*unseen, *_list_evidence(judged), *later]
    items += [EvidenceItem("lacks", f"{name}: {text}") for name, texts in others.items() for text in texts]
    if judged.missing:
        return _make_forecast("kept", judged.missing, evidence, items)
    if unseen:
        return _make_forecast("unknown", ("its machine was not queried",), evidence, items)
    return _make_forecast("deletable", judged.proven, evidence, items)


def _make_forecast(
    outcome: DeletionOutcome, reasons: Iterable[str], evidence: NodeEvidence, items: Iterable[EvidenceItem]
) -> DeletionForecast:
    instances = build_deletion_case(evidence).instances
    taint = plan_shutdown_taint(evidence.node, evidence.machine_report, instances)
    return DeletionForecast(outcome=outcome, reason="; ".join(reasons), evidence=tuple(items), taint=taint)


def _list_evidence(judged: Assessment) -> Iterator[EvidenceItem]:
    yield from (EvidenceItem("has", text) for text in judged.proven)
    yield from (EvidenceItem("lacks", text) for text in judged.missing)


def _list_time_conditions(terms: DeletionPolicy) -> Iterator[EvidenceItem]:
    history = assess_history(None, min_polls=terms.min_polls, min_span=terms.min_span)
    minutes = f"{terms.min_span.total_seconds() / 60:g} min"
    for text in history.missing:
        yield EvidenceItem("later", f"{text}, over {minutes}: this is the first")
    yield _describe_grace(terms)


def _describe_grace(terms: DeletionPolicy) -> EvidenceItem:
    minutes = f"{terms.startup_grace.total_seconds() / 60:g} min"
    text = f"{minutes} since lifecycle started and leads, and deletions left in this hour"
    return EvidenceItem("later", text)
