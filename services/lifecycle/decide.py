"""Whether a Node is to be deleted: all of the evidence at once, or it stays."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.node import Node
from services.lifecycle.evidence import Assessment, MachineIndex, MachineReport, assess_node, assess_report
from services.lifecycle.gcp_spot import assess_gcp_spot, is_gcp_spot
from services.lifecycle.poll_history import PollHistory, assess_history

REPLACED: Final = "replaced"  # the kinds of evidence, for metrics
SPOT: Final = "gcp-spot"


class DeletionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a deletion takes."""

    min_not_ready: timedelta = timedelta(minutes=5)  # longer than that
    min_polls: int = 3
    min_span: timedelta = timedelta(minutes=10)  # from the first look to the last
    startup_grace: timedelta = timedelta(minutes=10)  # since our own start, and since we lead
    max_poll_age: timedelta = timedelta(minutes=2)  # what was seen longer ago may be over
    deletes_gcp_spot: bool = False  # --delete-preempted-gcp-spot


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What we ourselves are."""

    uptime: timedelta  # since our start
    leading_for: timedelta | None  # since we lead; None = we do not
    pause_reason: str = ""  # why nothing may be written, in words


class DeletionCase(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about one Node."""

    node: Node
    report: MachineReport | None = None  # metadata's last
    history: PollHistory | None = None
    machines: MachineIndex = MachineIndex()


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """It is proven that the machine is gone."""

    kind: str  # REPLACED or SPOT
    reason: str


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """It is not."""

    assessment: Assessment
    spot_assessment: Assessment = (
        Assessment()
    )  # what the rule for GCP spot machines lacks, where it is on and about this Node

    @property
    def reason(self) -> str:
        """What is missing first, then what there is."""
        lacks, has = "; ".join(self.assessment.missing), "; ".join(self.assessment.proven)
        told = f"kept, for want of: {lacks}" + (f". There is: {has}" if has else "")
        spot = "; ".join(self.spot_assessment.missing)
        return told + (f". For --delete-preempted-gcp-spot: {spot}" if spot else "")


def decide(
    case: DeletionCase, policy: DeletionPolicy, replica: ReplicaStatus, *, now: datetime, monotonic_now: float
) -> Delete | Keep:
    """Delete only if nothing is missing. `now` is UTC, `at` monotonic seconds of the clock of the looks."""
    ours = assess_replica(replica, policy)
    spot = Assessment()
    if policy.deletes_gcp_spot and is_gcp_spot(case.node):
        spot = assess_gcp_spot(case.node, now) + ours
        if not spot.missing:
            return Delete(kind=SPOT, reason="; ".join(spot.proven))
    judged = assess_case(case, policy, now=now, monotonic_now=monotonic_now) + ours
    if judged.missing:
        return Keep(assessment=judged, spot_assessment=spot)
    return Delete(kind=REPLACED, reason="; ".join(judged.proven))


def assess_case(
    case: DeletionCase, policy: DeletionPolicy, *, now: datetime, monotonic_now: float
) -> Assessment:
    """The evidence that the Node's machine was replaced, and what it lacks."""
    look = assess_report(case.node, case.report, case.machines)
    judged = look + assess_node(case.node, now, min_not_ready=policy.min_not_ready)
    if not case.history and look.missing:
        return judged  # there is nothing yet that could have held for some time
    history = case.history if case.history and case.history.uid == case.node.uid else None
    judged += assess_history(history, min_polls=policy.min_polls, min_span=policy.min_span)
    if history and _time_since_last_poll(history, now=now, monotonic_now=monotonic_now) > policy.max_poll_age:
        judged += Assessment(missing=("a look of just now, by the clocks of both metadata and lifecycle",))
    return judged


def _time_since_last_poll(history: PollHistory, *, now: datetime, monotonic_now: float) -> timedelta:
    """How long ago the last look was, by whichever clock says more: what is heard now may have been on its
    way for long.
    """
    return max(timedelta(seconds=monotonic_now - history.last.received_at), now - history.last.ended_at)


def assess_replica(replica: ReplicaStatus, policy: DeletionPolicy) -> Assessment:
    """Whether we ourselves may judge others."""
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


def why_excluded(ownership: Ownership, node: Node) -> str:
    """Why this Node is left alone, in words; "" when it is ours for certain."""
    if ownership.provider_id_schemes and not node.spec.provider_id:
        return "ownership.providerIDSchemes is set and it has no providerID: whose it is, is not known"
    return why_not_owned(ownership, node)
