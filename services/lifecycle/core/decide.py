"""Decides whether to delete a Node: only if all evidence is present at the same time."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.node import Node
from services.lifecycle.core.evidence import (
    Assessment,
    MachineIndex,
    MachineReport,
    assess_gcp_spot,
    assess_node,
    assess_report,
    is_gcp_spot,
)
from services.lifecycle.core.poll_history import PollHistory, assess_history

REPLACED: Final = "replaced"  # the kinds of evidence, for metrics
SPOT: Final = "gcp-spot"


class DeletionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions for a deletion."""

    min_not_ready: timedelta = timedelta(minutes=5)  # exclusive
    min_polls: int = 3
    min_span: timedelta = timedelta(minutes=10)  # from the first poll to the last
    startup_grace: timedelta = timedelta(minutes=10)  # since the start of this replica, and since it leads
    max_poll_age: timedelta = timedelta(minutes=2)  # an older poll may be out of date
    deletes_gcp_spot: bool = False  # --delete-preempted-gcp-spot


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of this replica."""

    uptime: timedelta
    leading_for: timedelta | None  # None: this replica does not lead
    pause_reason: str = ""  # why lifecycle may write nothing now; "" if it may


class DeletionCase(msgspec.Struct, frozen=True, kw_only=True):
    """All data about one Node that decides about its deletion."""

    node: Node
    report: MachineReport | None = None  # metadata's last one
    history: PollHistory | None = None
    machines: MachineIndex = MachineIndex()


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """The machine is proven gone."""

    kind: str  # REPLACED or SPOT
    reason: str


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence is missing."""

    assessment: Assessment
    # by the rule for GCP spot machines; empty if the rule is off or does not apply to this Node
    spot_assessment: Assessment = Assessment()

    @property
    def reason(self) -> str:
        """The missing evidence first, then the existing evidence."""
        lacks, has = "; ".join(self.assessment.missing), "; ".join(self.assessment.proven)
        reason = f"kept, for want of: {lacks}" + (f". There is: {has}" if has else "")
        spot = "; ".join(self.spot_assessment.missing)
        return reason + (f". For --delete-preempted-gcp-spot: {spot}" if spot else "")


def decide(
    case: DeletionCase, policy: DeletionPolicy, replica: ReplicaStatus, *, now: datetime, monotonic_now: float
) -> Delete | Keep:
    """Return Delete only if no evidence is missing.

    `now` is UTC; `monotonic_now` is in seconds, of the clock that timed the receipt of polls.
    """
    of_replica = assess_replica(replica, policy)
    spot = Assessment()
    if policy.deletes_gcp_spot and is_gcp_spot(case.node):
        spot = assess_gcp_spot(case.node, now) + of_replica
        if not spot.missing:
            return Delete(kind=SPOT, reason="; ".join(spot.proven))
    assessment = assess_case(case, policy, now=now, monotonic_now=monotonic_now) + of_replica
    if assessment.missing:
        return Keep(assessment=assessment, spot_assessment=spot)
    return Delete(kind=REPLACED, reason="; ".join(assessment.proven))


def assess_case(
    case: DeletionCase, policy: DeletionPolicy, *, now: datetime, monotonic_now: float
) -> Assessment:
    """Assess the evidence that the Node's machine was replaced."""
    of_report = assess_report(case.node, case.report, case.machines)
    assessment = of_report + assess_node(case.node, now, min_not_ready=policy.min_not_ready)
    if not case.history and of_report.missing:
        return assessment  # no poll proves anything, so a history is not missing yet
    history = case.history if case.history and case.history.uid == case.node.uid else None
    assessment += assess_history(history, min_polls=policy.min_polls, min_span=policy.min_span)
    if history and _time_since_last_poll(history, now=now, monotonic_now=monotonic_now) > policy.max_poll_age:
        assessment += Assessment(missing=("a recent poll, by the clocks of both metadata and lifecycle",))
    return assessment


def _time_since_last_poll(history: PollHistory, *, now: datetime, monotonic_now: float) -> timedelta:
    """Return the age of the last poll, by the clock with the larger result: a message may arrive late."""
    return max(timedelta(seconds=monotonic_now - history.last.received_at), now - history.last.ended_at)


def assess_replica(replica: ReplicaStatus, policy: DeletionPolicy) -> Assessment:
    """Assess whether this replica may delete Nodes."""
    minutes = f"{policy.startup_grace.total_seconds() / 60:g} min"
    lacks = []
    if replica.pause_reason:
        lacks.append(replica.pause_reason)
    if replica.uptime < policy.startup_grace:
        lacks.append(f"{minutes} since the start of lifecycle itself")
    if replica.leading_for is None:
        lacks.append("the Lease: another lifecycle leads, or none")
    elif replica.leading_for < policy.startup_grace:
        lacks.append(f"{minutes} since this lifecycle leads")
    return Assessment(missing=tuple(lacks))


def explain_exclusion(ownership: Ownership, node: Node) -> str:
    """Return why lifecycle must not write this Node; "" if it certainly manages it."""
    if ownership.provider_id_schemes and not node.spec.provider_id:
        return "ownership.providerIDSchemes is set and the Node has no providerID: its owner is unknown"
    return why_not_owned(ownership, node)
