"""Plans the changes to one Node from the Node and the facts of its machine, with the reason."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import ownership_labels, why_not_owned, why_not_selected
from libs.common.contract.events import NodeUnreachable
from libs.common.contract.ip_addresses import IP
from libs.common.contract.machine import MachineFacts, PlatformMetadata
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeAddress
from libs.common.contract.node_ips import InvalidNodeIP, parse_node_ips, pick_one_per_family
from libs.common.contract.node_patch import NodeChanges
from libs.common.contract.public_addresses import lacks_node_ips
from services.labeler.addresses import plan_addresses
from services.labeler.blocker import (
    Blocker,
    block_on_bad_node_ip,
    block_on_fault,
    block_on_machine_config_taint,
    should_remove_condition,
)
from services.labeler.change_summary import summarize_changes, summarize_status
from services.labeler.metadata_changes import MetadataChanges, plan_metadata_changes
from services.labeler.node_ownership import why_not_managed
from services.labeler.notices import Notice, build_skipped_notices
from services.labeler.provided_node_ips import (
    ProvidedNodeIPs,
    build_unusable_ip_notices,
    find_fallback_ip_blocker,
    find_node_ip_blocker,
    verify_provided_node_ips,
)
from services.labeler.provider_id import build_provider_id, derive_native_provider_id, describe_mismatch
from services.labeler.provider_id_blockers import find_fallback_blocker, find_provider_id_blocker
from services.labeler.provider_id_rule import is_set_by_rule
from services.labeler.rejection import NO_REJECTION, Rejection, build_rejection_notices, drop_rejected
from services.labeler.rules import NO_RULES, RuleEffects, Rules, apply_rules
from services.labeler.taints import is_set_by_machine_config

__all__ = [
    "IN_SYNC_REASON",
    "ClusterConfig",
    "Notice",
    "Plan",
    "PlanOutcome",
    "merge_plans",
    "plan_node",
    "plan_unreachable_node",
    "why_excluded",
    "why_not_managed_by_rules",
]

IN_SYNC_REASON: Final = "the Node says what its machine says"

PlanOutcome = Literal["initialized", "updated", "unchanged", "blocked", "not-ours"]


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that apply to every Node of the cluster."""

    cluster_name: str = ""  # "" = the name in the machine's facts
    prefer_ipv6: bool = False
    rules: Rules = NO_RULES
    ownership: Ownership = Ownership()  # the Nodes that --cloud-config selects for this controller


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to one Node, their outcome and the reason."""

    outcome: PlanOutcome
    reason: str
    addresses: tuple[NodeAddress, ...] | None = None  # None: no change
    removes_condition: bool = False  # the status patch also removes the blocking condition
    changes: NodeChanges = NodeChanges()
    blocker: Blocker | None = None
    notices: tuple[Notice, ...] = ()
    status_summary: tuple[str, ...] = ()  # one line of text for each change to the status
    node_summary: tuple[str, ...] = ()  # one line of text for each change to the Node
    rule_effects: RuleEffects | None = None  # None: the machine gave no facts

    @property
    def summary(self) -> tuple[str, ...]:
        return self.status_summary + self.node_summary


def plan_node(
    node: Node,
    facts: MachineFacts,
    verified_by: str,
    config: ClusterConfig,
    rejection: Rejection = NO_REJECTION,
) -> Plan:
    """Return the difference between the Node and its desired state; a Node in sync gets an empty plan.

    A Node that is not managed or is blocked gets no changes, except that a stale blocking condition is
    removed. `rejection`: kinds of keys that Kubernetes rejected and that the plan omits.
    """
    effects = drop_rejected(apply_rules(config.rules, facts), rejection)
    plan = _plan_in_order(node, facts, effects, verified_by, config)
    return msgspec.structs.replace(
        plan, rule_effects=effects, notices=plan.notices + build_rejection_notices(rejection)
    )


def why_not_managed_by_rules(node: Node, facts: MachineFacts, config: ClusterConfig) -> str:
    """Return why the labeler ignores this Node, by the machine's facts and the rules, or ""."""
    return _why_not_managed(node, facts, apply_rules(config.rules, facts).platform, config)


def why_excluded(
    node: Node, facts: MachineFacts | None, config: ClusterConfig, effects: RuleEffects | None = None
) -> str:
    """Return why the ownership section of --cloud-config excludes this Node, or "".

    The labeler writes nothing at all to an excluded Node. For a Node without a providerID, the future native
    one counts. While the labeler cannot derive it yet, configured schemes exclude the Node.
    """
    ownership = config.ownership
    if facts is None or node.spec.provider_id or not ownership.provider_id_schemes:
        return why_not_owned(ownership, node)
    effects = effects or apply_rules(config.rules, facts)
    if find_provider_id_blocker(node, facts, effects, config.rules):
        return why_not_owned(ownership, node)
    future = derive_native_provider_id(effects.platform)
    return why_not_owned(ownership, node, provider_id=future) if future else why_not_selected(ownership, node)


def plan_unreachable_node(node: Node, event: NodeUnreachable, config: ClusterConfig) -> Plan:
    """Plan for a Node whose machine gave no facts.

    An initialized Node keeps its metadata and addresses; an uninitialized one is blocked by the fault.
    """
    known = event.last_known
    excluded = why_excluded(node, known, config)
    if excluded:
        return Plan(outcome="not-ours", reason=excluded)
    if known:
        foreign = why_not_managed_by_rules(node, known, config)
    else:
        foreign = why_not_managed(node, None, configured=config.ownership)
    if foreign:
        return _plan_foreign(node, foreign)
    return _plan_blocked(node, block_on_fault(event.fault))


def merge_plans(status_plan: Plan, node_plan: Plan) -> Plan:
    """Return `node_plan` with the status changes of `status_plan` in its outcome and summary.

    The labeler makes `node_plan` after the status patch, on the API server's response, which is the newest
    view of the Node.
    """
    outcome, reason = (
        (status_plan.outcome, status_plan.reason)
        if node_plan.outcome == "unchanged"
        else (node_plan.outcome, node_plan.reason)
    )
    if outcome == "initialized" and node_plan.outcome != "initialized":
        outcome, reason = "updated", "somebody else has initialised the Node meanwhile"
    return msgspec.structs.replace(
        node_plan, outcome=outcome, reason=reason, status_summary=status_plan.status_summary
    )


def _why_not_managed(
    node: Node, facts: MachineFacts, platform_by_rules: PlatformMetadata, config: ClusterConfig
) -> str:
    """Return why the labeler ignores the Node, or "".

    A providerID that either the machine or the rules give is ours: rules change, a providerID does not.
    """
    foreign = why_not_managed(node, platform_by_rules, configured=config.ownership)
    return (
        "" if foreign and not why_not_managed(node, facts.platform, configured=config.ownership) else foreign
    )


def _plan_in_order(
    node: Node, facts: MachineFacts, effects: RuleEffects, verified_by: str, config: ClusterConfig
) -> Plan:
    excluded = why_excluded(node, facts, config, effects)
    if excluded:
        return Plan(outcome="not-ours", reason=excluded)
    foreign = _why_not_managed(node, facts, effects.platform, config)
    if foreign:
        return _plan_foreign(node, foreign)
    ips = parse_node_ips(node.provided_node_ip)
    if isinstance(ips, InvalidNodeIP):
        return _plan_blocked(node, block_on_bad_node_ip(ips.reason))
    usable = verify_provided_node_ips(node, ips, facts)
    blocked = find_provider_id_blocker(node, facts, effects, config.rules)
    blocked = blocked or find_fallback_blocker(node, effects, config.ownership)
    if not node.is_initialized:
        blocked = blocked or find_node_ip_blocker(usable, facts)
    if not node.spec.provider_id and not derive_native_provider_id(effects.platform):
        node_ip = pick_one_per_family(ips, prefer_ipv6=config.prefer_ipv6)[0]
        blocked = blocked or find_fallback_ip_blocker(usable, node_ip, facts)
    if blocked is None and is_set_by_machine_config(node) and not node.is_initialized:
        blocked = block_on_machine_config_taint()
    if blocked is not None:
        return _plan_blocked(node, blocked, effects)
    return _plan_owned_node(node, facts, effects, verified_by, config, node_ips=usable)


def _plan_owned_node(
    node: Node,
    facts: MachineFacts,
    effects: RuleEffects,
    verified_by: str,
    config: ClusterConfig,
    *,
    node_ips: ProvidedNodeIPs,
) -> Plan:
    ips = node_ips.usable
    first_ip = str(next(iter(pick_one_per_family(ips, prefer_ipv6=config.prefer_ipv6)), facts.node_ip))
    found = plan_metadata_changes(
        node,
        facts,
        effects,
        cluster_name=config.cluster_name or facts.cluster_name,
        provider_id=None if node.spec.provider_id else build_provider_id(effects.platform, first_ip),
    )
    addresses = _plan_addresses(node, facts, effects, config, ips) if ips else None
    unblock = should_remove_condition(node)
    status_writes = summarize_status(addresses, removes_condition=unblock)
    guarded_labels = found.changes.guarded_labels + ownership_labels(config.ownership)
    node_writes = summarize_changes(found.changes)
    outcome = _choose_outcome(node, changed=bool(status_writes or node_writes))
    return Plan(
        outcome=outcome,
        reason=_describe_outcome(outcome, facts, first_ip, verified_by, found),
        addresses=addresses,
        removes_condition=unblock,
        changes=msgspec.structs.replace(found.changes, guarded_labels=guarded_labels),
        notices=(
            *_build_notices(node, facts, effects, verified_by, found),
            *build_unusable_ip_notices(node_ips, facts),
        ),
        status_summary=status_writes,
        node_summary=node_writes,
    )


def _plan_blocked(node: Node, blocker: Blocker, effects: RuleEffects | None = None) -> Plan:
    notices = build_skipped_notices(effects.skipped) if effects else ()
    if node.is_initialized:  # keep the last good state: pods may already run on the Node
        plan = Plan(outcome="unchanged", reason=f"left as it is: {blocker.message}", notices=notices)
        return _remove_stale_condition(node, plan)
    return Plan(outcome="blocked", reason=blocker.message, blocker=blocker, notices=notices)


def _plan_foreign(node: Node, reason: str) -> Plan:
    return _remove_stale_condition(node, Plan(outcome="not-ours", reason=reason))


def _remove_stale_condition(node: Node, plan: Plan) -> Plan:
    """Add the removal of the blocking condition to a plan without changes, if the Node is initialized.

    Another controller has initialized the Node, so the condition would only raise false alarms.
    """
    stale = node.is_initialized and node.find_condition(BLOCKED_CONDITION) is not None
    if not stale or node.metadata.deletion_timestamp is not None:
        return plan
    writes = summarize_status(None, removes_condition=True)
    return msgspec.structs.replace(plan, outcome="updated", removes_condition=True, status_summary=writes)


def _plan_addresses(
    node: Node, facts: MachineFacts, effects: RuleEffects, config: ClusterConfig, ips: tuple[IP, ...]
) -> tuple[NodeAddress, ...] | None:
    """Return the addresses to write; None if they are correct or cannot be determined now."""
    desired = plan_addresses(
        node.name,
        ips,
        facts,
        prefer_ipv6=config.prefer_ipv6,
        discovers_public_ips=effects.public_ip_discovery,
    )
    if desired == node.status.addresses:
        return None
    present = {address.address for address in node.status.addresses}
    has_node_ips = node.is_initialized and present.issuperset(map(str, ips))
    is_unevaluated = ("feature", "publicIPDiscovery") in effects.retained
    return None if has_node_ips and (is_unevaluated or lacks_node_ips(ips, facts)) else desired


def _choose_outcome(node: Node, *, changed: bool) -> PlanOutcome:
    if not node.is_initialized:
        return "initialized"
    return "updated" if changed else "unchanged"


def _describe_outcome(
    outcome: PlanOutcome, facts: MachineFacts, ip: str, verified_by: str, metadata_changes: MetadataChanges
) -> str:
    text = {
        "initialized": f"{facts.platform.platform} machine at {ip}, recognised by {verified_by}",
        "updated": "the Node did not say what its machine and the rules say",
    }.get(outcome, IN_SYNC_REASON)
    if metadata_changes.machine_config_keys:
        text += (
            "; left to the machine config, which sets them: "
            f"{', '.join(metadata_changes.machine_config_keys)}"
        )
    return text


def _build_notices(
    node: Node, facts: MachineFacts, effects: RuleEffects, verified_by: str, metadata_changes: MetadataChanges
) -> Iterable[Notice]:
    yield from metadata_changes.notices
    yield from build_skipped_notices(effects.skipped)
    if metadata_changes.invalid_labels:
        refused = ", ".join(f"{key}={value[:100]!r}" for key, value in metadata_changes.invalid_labels)
        text = f"labels not written, because Kubernetes does not take such a value: {refused}"
        yield Notice(reason="LabelSkipped", message=text)
    source = "a rule says" if is_set_by_rule(facts, effects) else "the machine reports"
    mismatch = describe_mismatch(node, effects.platform, source=source)
    if mismatch:
        yield Notice(reason="ProviderIDMismatch", message=mismatch)
    if verified_by == "system-uuid":
        text = f"Talos calls this machine {facts.node_name!r} (kubelet's hostname-override?): "
        yield Notice(
            reason="RecognizedBySystemUUID", message=text + "recognised by systemUUID", is_warning=False
        )
