"""Decides whether to delete a Node: only if all evidence of one source is present at the same time."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.events import InstanceGone, NodeUnreachable
from libs.common.contract.node import Node
from services.lifecycle.core.deletion_limit import DeletionLimit
from services.lifecycle.core.evidence import (
    Assessment,
    assess_gcp_spot,
    assess_node,
    assess_report,
    is_gcp_spot,
    is_not_ready,
)
from services.lifecycle.core.instance_evidence import assess_instance
from services.lifecycle.core.node_index import DeletionCase
from services.lifecycle.core.query_history import MAX_GAP, assess_history

REPLACED: Final = "replaced"  # the kinds of evidence, for metrics
SPOT: Final = "gcp-spot"
INSTANCE_GONE: Final = "instance-gone"


class DeletionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions for a deletion."""

    min_not_ready: timedelta = timedelta(minutes=5)  # exclusive
    min_polls: int = 3
    min_span: timedelta = timedelta(minutes=10)  # from the first poll to the last
    startup_grace: timedelta = timedelta(minutes=10)  # since the start of this replica, and since it leads
    max_poll_age: timedelta = timedelta(minutes=2)  # an older poll may be out of date
    # The same for a round of a cloud, which the rate limit stretches to some minutes for a whole pool.
    max_round_age: timedelta = MAX_GAP
    deletes_gcp_spot: bool = False  # --delete-preempted-gcp-spot
    max_deletions_per_hour: int = 10  # 0: no source of evidence deletes a Node


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of this replica."""

    uptime: timedelta
    leading_for: timedelta | None  # None: this replica does not lead
    pause_reason: str = ""  # why lifecycle may write nothing now; "" if it may


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """The machine is proven gone."""

    kind: str  # of the source of evidence: REPLACED, SPOT or INSTANCE_GONE
    reason: str
    limit: DeletionLimit


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Every source that applies to this Node lacks evidence."""

    assessment: Assessment  # whether its machine was replaced
    others: tuple[tuple[str, Assessment], ...] = ()  # name and assessment of each other source

    @property
    def reason(self) -> str:
        """The missing evidence first, then the existing evidence, then what each other source lacks."""
        lacks, has = "; ".join(self.assessment.missing), "; ".join(self.assessment.proven)
        reason = f"kept, because proof is missing: {lacks}" + (f". There is: {has}" if has else "")
        return reason + "".join(f". For {name}: {'; '.join(other.missing)}" for name, other in self.others)


class EvidenceSource(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of evidence that a machine is gone, which alone suffices for a deletion."""

    kind: str  # for metrics
    name: str  # for operators, after "For"
    applies: Callable[[DeletionCase, DeletionPolicy], bool]
    # whether the Node needs a decision by this source; one that it applies to and that is healthy does not
    is_suspect: Callable[[DeletionCase], bool]
    assess: Callable[[DeletionCase, DeletionPolicy], Assessment]
    limit: Callable[[DeletionCase, DeletionPolicy], DeletionLimit]


def decide(case: DeletionCase, policy: DeletionPolicy, replica: ReplicaStatus) -> Delete | Keep:
    """Return Delete only if no evidence is missing."""
    of_replica = assess_replica(replica, policy)
    found: dict[str, Assessment] = {}
    for source in SOURCES:
        if not source.applies(case, policy):
            continue
        assessment = source.assess(case, policy) + of_replica
        if not assessment.missing:
            reason = "; ".join(assessment.proven)
            return Delete(kind=source.kind, reason=reason, limit=source.limit(case, policy))
        found[source.name] = assessment
    return Keep(assessment=found.pop(_REPLACED_NAME), others=tuple(found.items()))


def needs_decision(case: DeletionCase, policy: DeletionPolicy) -> bool:
    """Whether the Node may have lost its machine, by any source."""
    return any(source.applies(case, policy) and source.is_suspect(case) for source in SOURCES)


def assess_case(case: DeletionCase, policy: DeletionPolicy) -> Assessment:
    """Assess the evidence that the Node's machine was replaced."""
    of_report = assess_report(case.node, case.report, case.machines)
    assessment = of_report + assess_node(case.node, case.now, min_not_ready=policy.min_not_ready)
    if not case.history and of_report.missing:
        return assessment  # no poll proves anything, so a history is not missing yet
    history = case.history if case.history and case.history.identity == case.node.uid else None
    assessment += assess_history(history, min_polls=policy.min_polls, min_span=policy.min_span)
    if history and history.age(now=case.now, monotonic_now=case.monotonic_now) > policy.max_poll_age:
        assessment += Assessment(missing=("a recent poll, by the clocks of both metadata and lifecycle",))
    return assessment


def assess_instance_gone(case: DeletionCase, policy: DeletionPolicy) -> Assessment:
    """Assess the evidence that the account which has shown the Node's instance alive has it no more."""
    record = case.record
    if record is None:
        return Assessment(missing=("a record that an account has shown its instance alive",))
    of_node = assess_node(case.node, case.now, min_not_ready=policy.min_not_ready)
    assessment = assess_instance(case, record) + of_node
    view = case.instances.get(record.account)
    history = view.history if view is not None else None
    if not history and assessment.missing:
        return assessment
    assessment += assess_history(history, min_polls=policy.min_polls, min_span=policy.min_span)
    if history and history.age(now=case.now, monotonic_now=case.monotonic_now) > policy.max_round_age:
        assessment += Assessment(missing=("a recent round, by the clocks of both cloud and lifecycle",))
    return assessment


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


def _is_machine_lost(case: DeletionCase) -> bool:
    """Whether its machine returned no facts; the labeler handles Nodes that are not initialized yet."""
    return case.node.is_initialized and isinstance(case.report, NodeUnreachable)


def _is_instance_lost(case: DeletionCase) -> bool:
    """Whether an account reports that its instance is gone."""
    gone = any(isinstance(view.last, InstanceGone) for view in case.instances.values())
    return case.node.is_initialized and gone


def _limit_by_flag(case: DeletionCase, policy: DeletionPolicy) -> DeletionLimit:
    return DeletionLimit(per_hour=policy.max_deletions_per_hour)


def _limit_of_account(case: DeletionCase, policy: DeletionPolicy) -> DeletionLimit:
    account = case.record.account if case.record is not None else ""
    nodes = sum(len(names) for (scope, _), names in case.recorded.items() if scope.account == account)
    per_hour = max(_MIN_OF_ACCOUNT, nodes // _SHARE_OF_ACCOUNT) if policy.max_deletions_per_hour else 0
    return DeletionLimit(
        per_hour=per_hour, pool=f"cloud/{account}", description=f"the limit of account {account}"
    )


_MIN_OF_ACCOUNT: Final = 30  # deletions an hour: a small pool may go at once
_SHARE_OF_ACCOUNT: Final = 5  # or one of so many Nodes of the account
_REPLACED_NAME: Final = "replaced machines"
INSTANCES_NAME: Final = "the cloud's instances"
SOURCES: Final = (
    EvidenceSource(
        kind=SPOT,
        name="--delete-preempted-gcp-spot",
        applies=lambda case, policy: policy.deletes_gcp_spot and is_gcp_spot(case.node),
        is_suspect=lambda case: is_not_ready(case.node),
        assess=lambda case, policy: assess_gcp_spot(case.node, case.now),
        limit=_limit_by_flag,
    ),
    EvidenceSource(
        kind=INSTANCE_GONE,
        name=INSTANCES_NAME,
        applies=lambda case, policy: bool(case.instances),
        is_suspect=_is_instance_lost,
        assess=assess_instance_gone,
        limit=_limit_of_account,
    ),
    EvidenceSource(
        kind=REPLACED,
        name=_REPLACED_NAME,
        applies=lambda case, policy: True,
        is_suspect=_is_machine_lost,
        assess=assess_case,
        limit=_limit_by_flag,
    ),
)


def explain_exclusion(ownership: Ownership, node: Node) -> str:
    """Return why lifecycle must not write this Node; "" if it certainly manages it."""
    if ownership.provider_id_schemes and not node.spec.provider_id:
        return "ownership.providerIDSchemes is set and the Node has no providerID: its owner is unknown"
    return why_not_owned(ownership, node)
