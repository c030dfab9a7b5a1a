"""Plans the changes to one Node from the Node and the facts of its machine, with the reason."""

from collections.abc import Iterable

import msgspec

from libs.common.cloud_config.ownership import ownership_labels
from libs.common.contract.events import NodeUnreachable
from libs.common.contract.instances import derive_native_provider_id
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import (
    BLOCKED_CONDITION,
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    Node,
)
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.blocker import WRITE_FAILED, Notice, block, block_on_fault
from services.labeler.core.plan.addresses import plan_addresses, verify_provided_node_ips
from services.labeler.core.plan.kept_keys import list_kept_keys
from services.labeler.core.plan.keys import plan_keys
from services.labeler.core.plan.node_ownership import check_ownership
from services.labeler.core.plan.notices import build_record_notices, build_skipped_notices
from services.labeler.core.plan.ownership_record import (
    NO_RECORD,
    OwnershipRecord,
    add_ownership_record,
    read_ownership_record,
    restore_ownership_record,
)
from services.labeler.core.plan.plan import (
    IN_SYNC_REASON,
    ClusterConfig,
    NotOurs,
    Plan,
    PlanInput,
    PlanOutcome,
    PlanPart,
    ProviderIDConflict,
)
from services.labeler.core.plan.provider_id import plan_provider_id
from services.labeler.core.plan.rejection import (
    NO_REJECTION,
    Rejection,
    build_rejection_notices,
    drop_rejected,
)
from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.effects import RuleEffects


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of all parts of one plan, and the ownership record from which they were planned."""

    record: OwnershipRecord
    addresses: PlanPart
    provider_id: PlanPart
    keys: PlanPart


def plan_node(
    node: Node,
    facts: MachineFacts,
    verified_by: str,
    config: ClusterConfig,
    rejection: Rejection = NO_REJECTION,
    *,
    effects: RuleEffects | None = None,
) -> Plan:
    """Return the difference between the Node and its desired state; a Node in sync gets an empty plan.

    A Node that is not managed or is blocked gets no changes, except that a stale blocking condition is
    removed. `rejection`: kinds of keys that Kubernetes rejected and that the plan omits. `effects`: of the
    rules on the machine, if the caller has them.
    """
    effects = drop_rejected(effects or apply_rules(config.rules, facts), rejection)
    not_ours = check_ownership(node, facts, config, effects)
    if not_ours:
        plan = _plan_not_ours(node, not_ours)
    else:
        plan = _plan_managed_node(
            PlanInput(
                node=node,
                facts=facts,
                verified_by=verified_by,
                effects=effects,
                config=config,
            )
        )
    notices = plan.notices + build_rejection_notices(rejection)
    return msgspec.structs.replace(plan, rule_effects=effects, notices=notices)


def withhold_provider_id(plan: Plan, node: Node, conflict: ProviderIDConflict) -> Plan:
    """Return the plan for a Node whose new providerID another Node has: blocked, or with a notice."""
    effects, provider_id, other = plan.rule_effects, plan.changes.provider_id, conflict.other
    if not conflict.why_withheld:
        text = (
            f"Node {other} has the same providerID {provider_id!r}, but no other machine answers as that "
            f"Node: its machine was probably reinstalled as this Node. If so, kubectl delete node {other}"
        )
        notice = Notice(reason="ProviderIDOfStaleNode", message=text)
        return msgspec.structs.replace(plan, notices=(*plan.notices, notice))
    if effects is None or not derive_native_provider_id(effects.platform):
        return (
            plan  # this machine has the address in the fallback; the other one had it earlier, and keeps it
        )
    why = conflict.why_withheld
    blocker = block(conflict.reason, provider_id=provider_id, other=other, why=why)
    return msgspec.structs.replace(_plan_blocked(node, blocker, effects), rule_effects=effects)


def plan_unreachable_node(node: Node, event: NodeUnreachable, config: ClusterConfig) -> Plan:
    """Plan for a Node whose machine gave no facts.

    An initialized Node keeps its metadata and addresses; an uninitialized one is blocked by the fault.
    """
    not_ours = check_ownership(node, event.last_known, config)
    return _plan_not_ours(node, not_ours) if not_ours else _plan_blocked(node, block_on_fault(event.fault))


def plan_unreported_node(node: Node, config: ClusterConfig, blocker: Notice | None = None) -> Plan | None:
    """Plan for a Node about whose machine metadata has published nothing; None if nothing is decided yet."""
    if not_ours := check_ownership(node, None, config):
        return Plan(outcome="not-ours", reason=not_ours.reason, not_ours=not_ours)
    return _plan_blocked(node, blocker) if blocker else None


def _plan_managed_node(inputs: PlanInput) -> Plan:
    """Plan each part of a Node that is ours. The first blocker counts: providerID, addresses, then taints."""
    node, record = inputs.node, _find_record(inputs)
    node_ips = verify_provided_node_ips(node, inputs.facts)
    if node_ips.problem:
        return _plan_blocked(node, block("ProvidedNodeIPInvalid", why=node_ips.problem))
    node_ip = str(node_ips.select_first(prefer_ipv6=inputs.config.prefer_ipv6) or inputs.facts.node_ip)
    parts = _Parts(
        record=record,
        addresses=plan_addresses(inputs, node_ips),
        provider_id=plan_provider_id(inputs, node_ip),
        keys=plan_keys(inputs, record),
    )
    blocker = parts.provider_id.blocker or parts.addresses.blocker or parts.keys.blocker
    if blocker:
        return _plan_blocked(node, blocker, inputs.effects)
    return _combine_parts(inputs, node_ip, parts)


def _plan_blocked(node: Node, blocker: Notice, effects: RuleEffects | None = None) -> Plan:
    notices = build_skipped_notices(effects) if effects else ()
    if node.is_initialized:  # keep the last good state: pods may already run on the Node
        plan = Plan(outcome="unchanged", reason=f"left as it is: {blocker.message}", notices=notices)
        return _remove_stale_condition(node, plan)
    return Plan(outcome="blocked", reason=blocker.message, blocker=blocker, notices=notices)


def _plan_not_ours(node: Node, not_ours: NotOurs) -> Plan:
    plan = Plan(outcome="not-ours", reason=not_ours.reason, not_ours=not_ours)
    return plan if not_ours.is_excluded else _remove_stale_condition(node, plan)


def _remove_stale_condition(node: Node, plan: Plan) -> Plan:
    """Add the removal of the blocking condition to a plan without changes, if the Node is initialized.

    Another controller has initialized the Node, so the condition would only raise false alarms.
    """
    stale = node.is_initialized and node.find_condition(BLOCKED_CONDITION) is not None
    if not stale or node.metadata.deletion_timestamp is not None:
        return plan
    return msgspec.structs.replace(plan, outcome="updated", removes_condition=True)


def _should_remove_condition(node: Node) -> bool:
    """Return whether the status patch that sets the addresses must remove the blocking condition.

    If the last write failed, the condition stays until the Node is initialized. Otherwise each retry would
    remove it and the next pass of the monitor would set it again.
    """
    condition = node.find_condition(BLOCKED_CONDITION)
    return condition is not None and (node.is_initialized or condition.reason != WRITE_FAILED)


def _find_record(inputs: PlanInput) -> OwnershipRecord:
    """Return the ownership record of the Node, restored if another writer has damaged it."""
    record = read_ownership_record(inputs.node)
    if record.state != "unreadable":
        return record
    return restore_ownership_record(record, inputs.node, plan_keys(inputs, NO_RECORD).recorded)


def _combine_parts(inputs: PlanInput, node_ip: str, parts: _Parts) -> Plan:
    plan = Plan(
        outcome="unchanged",
        reason="",
        addresses=parts.addresses.addresses,
        removes_condition=_should_remove_condition(inputs.node),
        changes=_combine_changes(inputs, parts),
        notices=tuple(_list_notices(inputs, parts)),
    )
    outcome: PlanOutcome = "updated" if plan.summary else "unchanged"
    if not inputs.node.is_initialized:
        outcome = "initialized"
    reason = _describe_outcome(outcome, inputs, node_ip, parts)
    return msgspec.structs.replace(plan, outcome=outcome, reason=reason)


def _combine_changes(inputs: PlanInput, parts: _Parts) -> NodeChanges:
    changes = msgspec.structs.replace(
        parts.keys.changes,
        # A patch on an old view of the record could set keys that are never recorded, nor removed.
        guarded_labels=(FIELD_OWNERSHIP_DIGEST_LABEL, *ownership_labels(inputs.config.ownership)),
        guarded_annotations=(FIELD_OWNERSHIP_ANNOTATION,),
        provider_id=parts.provider_id.changes.provider_id,
    )
    provider_id = parts.provider_id.recorded.provider_id or parts.record.managed_fields.provider_id
    fields = msgspec.structs.replace(parts.keys.recorded, provider_id=provider_id)
    return add_ownership_record(changes, inputs.node, parts.record, fields)


def _describe_outcome(outcome: PlanOutcome, inputs: PlanInput, node_ip: str, parts: _Parts) -> str:
    machine = f"{inputs.facts.platform.platform} machine at {node_ip}"
    text = {
        "initialized": f"{machine}, recognised by {inputs.verified_by}",
        "updated": "the Node differed from its machine or the rules",
    }.get(outcome, IN_SYNC_REASON)
    kept_keys = list_kept_keys(inputs.node, parts.keys.recorded)
    if kept := ", ".join(f"{each.kind} {each.key}" for each in kept_keys):
        text = f"everything is set but {kept}" if outcome == "unchanged" else f"{text}; not set: {kept}"
    if keys := ", ".join(parts.keys.machine_config_keys):
        text = f"{text}; set by the machine config and left unchanged: {keys}"
    return text + _describe_unevaluated(inputs.effects)


def _describe_unevaluated(effects: RuleEffects) -> str:
    """Return which rules were not evaluated, after a semicolon; their keys stay unchanged.

    A notice names the rule that exceeded the budget.
    """
    results = [each for each in effects.results if not each.is_evaluated]
    if not results or effects.exhausted_by is not None:
        return ""
    more = f", and {len(results) - 1} more" if len(results) > 1 else ""
    return f"; not evaluated: rule {results[0].rule!r} ({results[0].reason}){more}"


def _list_notices(inputs: PlanInput, parts: _Parts) -> Iterable[Notice]:
    yield from build_record_notices(parts.record)
    yield from parts.keys.notices
    yield from build_skipped_notices(inputs.effects)
    yield from parts.provider_id.notices
    if inputs.verified_by == "system-uuid":
        text = f"Talos calls this machine {inputs.facts.node_name!r} (kubelet's hostname-override?): "
        yield Notice(
            reason="RecognizedBySystemUUID", message=text + "recognised by systemUUID", is_warning=False
        )
    yield from parts.addresses.notices
