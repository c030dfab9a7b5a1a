"""The plan for one Node: its input, the answer of each part, the result, and a summary for operators."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.findings import truncate_line
from libs.common.cloud_config.model import ExternalIPs, Ownership
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import (
    BLOCKED_CONDITION,
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    Node,
    NodeAddress,
    Taint,
)
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.blocker import PROVIDER_ID_OF_ANOTHER, Notice
from services.labeler.core.plan.ownership_record import ManagedFields
from services.labeler.core.rules.compilation import NO_RULES, Rules
from services.labeler.core.rules.effects import RuleEffects

IN_SYNC_REASON: Final = "the Node matches its machine and the rules"
_MAX_VALUE_LENGTH: Final = 200  # characters of an annotation

PlanOutcome = Literal["initialized", "updated", "unchanged", "blocked", "not-ours"]
WRITTEN_OUTCOMES: Final = frozenset({"initialized", "updated"})


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that apply to every Node of the cluster."""

    cluster_name: str = ""  # "" = the name in the machine's facts
    prefer_ipv6: bool = False
    external_ips: ExternalIPs = ExternalIPs()
    rules: Rules = NO_RULES
    ownership: Ownership = Ownership()  # the Nodes that --cloud-config selects for this controller


class ProviderIDConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Another Node with the same providerID, or one that may have it."""

    other: str  # its name
    why_withheld: str  # why this Node must not get the providerID; "" if the other Node is stale
    reason: str = PROVIDER_ID_OF_ANOTHER  # of the blocker


class PlanInput(msgspec.Struct, frozen=True, kw_only=True):
    """Everything from which the parts of a plan are planned."""

    node: Node
    facts: MachineFacts
    verified_by: str  # how metadata recognized the machine
    effects: RuleEffects  # of the rules on this machine
    config: ClusterConfig


class PlanPart(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one part of a plan: addresses, providerID, labels, annotations or taints."""

    changes: NodeChanges = NodeChanges()
    recorded: ManagedFields = ManagedFields()  # this part's entries in the next ownership record
    addresses: tuple[NodeAddress, ...] | None = None  # None: no change
    blocker: Notice | None = None  # why the Node cannot be initialized; then no part is written
    notices: tuple[Notice, ...] = ()
    machine_config_keys: tuple[str, ...] = ()  # set by the machine config to a value that is not desired


class NotOurs(msgspec.Struct, frozen=True):
    """Why the labeler ignores a Node. It writes nothing at all to a Node that --cloud-config excludes."""

    reason: str
    is_excluded: bool = False
    notice: Notice | None = None  # for a Node that waits for long


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to one Node, their outcome and the reason."""

    outcome: PlanOutcome
    reason: str
    addresses: tuple[NodeAddress, ...] | None = None  # None: no change
    removes_condition: bool = False  # the status patch also removes the blocking condition
    changes: NodeChanges = NodeChanges()
    blocker: Notice | None = None
    not_ours: NotOurs | None = None
    notices: tuple[Notice, ...] = ()
    rule_effects: RuleEffects | None = None  # None: the machine gave no facts

    @property
    def summary(self) -> tuple[str, ...]:
        """One line of text for each change."""
        addresses = ", ".join(f"{each.type}={each.address}" for each in self.addresses or ())
        return (
            *(() if self.addresses is None else (f"addresses {addresses}",)),
            *((f"condition {BLOCKED_CONDITION} removed",) if self.removes_condition else ()),
            *self.node_summary,
        )

    @property
    def node_summary(self) -> tuple[str, ...]:
        """The lines of all changes but those to the status."""
        return tuple(_summarize_changes(self.changes))

    @property
    def matching_rules(self) -> tuple[str, ...]:
        """The titles of the rules that match the Node, in the order of the file."""
        results = self.rule_effects.results if self.rule_effects is not None else ()
        return tuple(result.rule for result in results if result.is_matched)

    @property
    def reason_and_notices(self) -> str:
        """The reason, and what needs attention on the Node."""
        return "; ".join((self.reason, *(notice.message for notice in self.notices)))


def merge_plans(status_plan: Plan, node_plan: Plan) -> Plan:
    """Return `node_plan` with the status changes of `status_plan` in its outcome and summary.

    The labeler makes `node_plan` after the status patch, on the API server's response, which is the newest
    view of the Node.
    """
    outcome, reason = node_plan.outcome, node_plan.reason
    if outcome == "unchanged":
        outcome, reason = status_plan.outcome, status_plan.reason
        if outcome == "initialized":
            outcome, reason = "updated", "another controller has initialized the Node meanwhile"
    return msgspec.structs.replace(
        node_plan,
        outcome=outcome,
        reason=reason,
        addresses=status_plan.addresses,
        removes_condition=status_plan.removes_condition,
    )


def _summarize_changes(changes: NodeChanges) -> Iterable[str]:
    """Return one line for each change to the Node; the record gets one only if nothing else changes."""
    labels = {key: value for key, value in changes.labels.items() if key != FIELD_OWNERSHIP_DIGEST_LABEL}
    annotations = {
        key: value for key, value in changes.annotations.items() if key != FIELD_OWNERSHIP_ANNOTATION
    }
    lines = (
        *_summarize_keys("label", labels),
        *_summarize_keys("annotation", annotations),
        *(() if changes.provider_id is None else (f"providerID {changes.provider_id}",)),
        *(f"taint {_format_taint(taint)} set" for taint in changes.set_taints),
        *(f"taint {taint.key}:{taint.effect} removed" for taint in changes.remove_taints),
    )
    if lines or FIELD_OWNERSHIP_ANNOTATION not in changes.annotations:
        return lines
    return (f"annotation {FIELD_OWNERSHIP_ANNOTATION}: ownership record",)


def _summarize_keys(kind: str, changes: dict[str, str | None]) -> Iterable[str]:
    for key, value in changes.items():
        yield f"{kind} {key} removed" if value is None else f"{kind} {key}={_truncate_value(value)}"


def _format_taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _truncate_value(value: str) -> str:
    return truncate_line(value, _MAX_VALUE_LENGTH)  # machine input, read in terminals
