"""What a Node should become, from what it is and what its machine says: a value, and the reason for it."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.rule import Ownership
from libs.common.events import NodeUnreachable
from libs.common.machine import MachineFacts, PlatformMetadata
from libs.common.node import CONDITION_BLOCKED, Node, NodeAddress
from libs.common.node_ips import IP, BadNodeIP, first_of_each_family, node_ips
from libs.common.ownership import deciding_labels, why_not_owned, why_not_selected
from libs.common.patch import NodeChanges
from libs.common.public_addresses import misses_node_ips
from services.labeler.addresses import wanted_addresses
from services.labeler.announced import (
    Announced,
    announced,
    of_unusable,
    unusable_fallback,
    why_it_waits,
)
from services.labeler.blocked import (
    Blocked,
    by_bad_node_ip,
    by_fault,
    by_taint_of_talos,
    to_be_removed,
)
from services.labeler.claimed import Claimed, claimed
from services.labeler.in_words import changes_in_words, status_in_words
from services.labeler.notices import Notice, of_skipped
from services.labeler.ownership import why_not_ours
from services.labeler.provider_id import mismatch, provider_id_of, reported_provider_id
from services.labeler.provider_id_rule import given_by_rule
from services.labeler.refused import NOTHING_REFUSED, Refused, notices_of, without
from services.labeler.rules import NO_RULES, RuleEffects, Rules, apply_rules
from services.labeler.taints import put_back_by_talos
from services.labeler.without_provider_id import unknown_provider_id, unwritten_fallback

__all__ = [
    "AS_IT_SHOULD_BE",
    "Global",
    "Notice",
    "Outcome",
    "Plan",
    "continued",
    "plan_node",
    "plan_unreachable",
    "why_left_alone",
    "why_not_ours_by_rules",
]

AS_IT_SHOULD_BE: Final = "the Node says what its machine says"

Outcome = Literal["initialized", "updated", "unchanged", "blocked", "not-ours"]


class Global(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every Node of the cluster."""

    cluster_name: str = ""  # "" = the name in the machine's facts
    prefer_ipv6: bool = False
    rules: Rules = NO_RULES
    ownership: Ownership = Ownership()  # which Nodes are ours, as far as the file says it


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be written, if anything, and why."""

    outcome: Outcome
    reason: str
    addresses: tuple[NodeAddress, ...] | None = None  # None leaves them alone
    unblock: bool = False  # the condition goes, in the patch that writes the addresses
    changes: NodeChanges = NodeChanges()
    blocked: Blocked | None = None
    notices: tuple[Notice, ...] = ()
    status_writes: tuple[str, ...] = ()  # the same in words, one line for each change
    node_writes: tuple[str, ...] = ()
    effects: RuleEffects | None = None  # of the rules; None where nothing is known of the machine

    @property
    def writes(self) -> tuple[str, ...]:
        return self.status_writes + self.node_writes


def plan_node(
    node: Node,
    facts: MachineFacts,
    recognized_by: str,
    config: Global,
    refused: Refused = NOTHING_REFUSED,
) -> Plan:
    """All that differs between the Node and what it should be; nothing for one that is as it should be.

    A Node that is not ours, or whose machine cannot be told for certain yet, is not touched at all.
    """
    effects = without(apply_rules(config.rules, facts), refused)
    plan = _plan(node, facts, effects, recognized_by, config)
    return msgspec.structs.replace(plan, effects=effects, notices=plan.notices + notices_of(refused))


def why_not_ours_by_rules(node: Node, facts: MachineFacts, config: Global) -> str:
    """Why this Node is to be left alone, in words; "" when it is ours."""
    return _why_not_ours(node, facts, apply_rules(config.rules, facts).platform, config)


def why_left_alone(
    node: Node, facts: MachineFacts | None, config: Global, effects: RuleEffects | None = None
) -> str:
    """Why the file has this Node be another's, in words; "" where it does not.

    Nothing at all is written on such a Node. One without a providerID counts by the one that it will get;
    until that is known, by schemes it is nobody's.
    """
    ownership = config.ownership
    if facts is None or node.spec.provider_id or not ownership.provider_id_schemes:
        return why_not_owned(ownership, node)
    effects = effects or apply_rules(config.rules, facts)
    if unknown_provider_id(node, facts, effects, config.rules):
        return why_not_owned(ownership, node)
    coming = reported_provider_id(effects.platform)
    return why_not_owned(ownership, node, provider_id=coming) if coming else why_not_selected(ownership, node)


def plan_unreachable(node: Node, event: NodeUnreachable, config: Global) -> Plan:
    """A Node whose machine gave no facts: an initialised one is left as it is, another one has to wait."""
    known = event.last_known
    left_alone = why_left_alone(node, known, config)
    if left_alone:
        return Plan(outcome="not-ours", reason=left_alone)
    if known:
        foreign = why_not_ours_by_rules(node, known, config)
    else:
        foreign = why_not_ours(node, None, by_file=config.ownership)
    if foreign:
        return _not_ours(node, foreign)
    return _blocked(node, by_fault(event.fault))


def continued(written: Plan, rest: Plan) -> Plan:
    """The plan that was made after the first one's status had been written, telling of both.

    The API server's answer to the first write is the newest view there is, so the second is planned on it.
    """
    outcome, reason = (
        (written.outcome, written.reason) if rest.outcome == "unchanged" else (rest.outcome, rest.reason)
    )
    if outcome == "initialized" and rest.outcome != "initialized":
        outcome, reason = "updated", "somebody else has initialised the Node meanwhile"
    return msgspec.structs.replace(rest, outcome=outcome, reason=reason, status_writes=written.status_writes)


def _why_not_ours(node: Node, facts: MachineFacts, by_rules: PlatformMetadata, config: Global) -> str:
    """A providerID that the machine or the rules would give is ours: rules come and change, it does not."""
    foreign = why_not_ours(node, by_rules, by_file=config.ownership)
    return "" if foreign and not why_not_ours(node, facts.platform, by_file=config.ownership) else foreign


def _plan(node: Node, facts: MachineFacts, effects: RuleEffects, recognized_by: str, config: Global) -> Plan:
    left_alone = why_left_alone(node, facts, config, effects)
    if left_alone:
        return Plan(outcome="not-ours", reason=left_alone)
    foreign = _why_not_ours(node, facts, effects.platform, config)
    if foreign:
        return _not_ours(node, foreign)
    ips = node_ips(node.provided_node_ip)
    if isinstance(ips, BadNodeIP):
        return _blocked(node, by_bad_node_ip(ips.reason))
    usable = announced(node, ips, facts)
    blocked = unknown_provider_id(node, facts, effects, config.rules)
    blocked = blocked or unwritten_fallback(node, effects, config.ownership)
    if not node.initialized:
        blocked = blocked or why_it_waits(usable, facts)
    if not node.spec.provider_id and not reported_provider_id(effects.platform):
        node_ip = first_of_each_family(ips, prefer_ipv6=config.prefer_ipv6)[0]
        blocked = blocked or unusable_fallback(usable, node_ip, facts)
    if blocked is None and put_back_by_talos(node) and not node.initialized:
        blocked = by_taint_of_talos()
    if blocked is not None:
        return _blocked(node, blocked, effects)
    return _plan_ours(node, facts, effects, recognized_by, config, found_ips=usable)


def _plan_ours(
    node: Node,
    facts: MachineFacts,
    effects: RuleEffects,
    recognized_by: str,
    config: Global,
    *,
    found_ips: Announced,
) -> Plan:
    ips = found_ips.usable
    first_ip = str(next(iter(first_of_each_family(ips, prefer_ipv6=config.prefer_ipv6)), facts.node_ip))
    found = claimed(
        node,
        facts,
        effects,
        cluster_name=config.cluster_name or facts.cluster_name,
        provider_id=None if node.spec.provider_id else provider_id_of(effects.platform, first_ip),
    )
    addresses = _addresses(node, facts, effects, config, ips) if ips else None
    unblock = to_be_removed(node)
    status_writes = status_in_words(addresses, unblock=unblock)
    held = found.changes.held_labels + deciding_labels(config.ownership)
    node_writes = changes_in_words(found.changes)
    outcome = _outcome(node, changed=bool(status_writes or node_writes))
    return Plan(
        outcome=outcome,
        reason=_reason(outcome, facts, first_ip, recognized_by, found),
        addresses=addresses,
        unblock=unblock,
        changes=msgspec.structs.replace(found.changes, held_labels=held),
        notices=(*_notices(node, facts, effects, recognized_by, found), *of_unusable(found_ips, facts)),
        status_writes=status_writes,
        node_writes=node_writes,
    )


def _blocked(node: Node, blocked: Blocked, effects: RuleEffects | None = None) -> Plan:
    notices = of_skipped(effects.skipped) if effects else ()
    if node.initialized:  # the last good state stays; the Node is somebody's home by now
        plan = Plan(outcome="unchanged", reason=f"left as it is: {blocked.message}", notices=notices)
        return _without_old_condition(node, plan)
    return Plan(outcome="blocked", reason=blocked.message, blocked=blocked, notices=notices)


def _not_ours(node: Node, reason: str) -> Plan:
    return _without_old_condition(node, Plan(outcome="not-ours", reason=reason))


def _without_old_condition(node: Node, plan: Plan) -> Plan:
    """The plan for a Node that is left alone, but for a condition of ours that is not true any more.

    Somebody else has initialised it: saying for ever that it is blocked would only raise false alarms.
    """
    stale = node.initialized and node.condition(CONDITION_BLOCKED) is not None
    if not stale or node.metadata.deletion_timestamp is not None:
        return plan
    writes = status_in_words(None, unblock=True)
    return msgspec.structs.replace(plan, outcome="updated", unblock=True, status_writes=writes)


def _addresses(
    node: Node, facts: MachineFacts, effects: RuleEffects, config: Global, ips: tuple[IP, ...]
) -> tuple[NodeAddress, ...] | None:
    """The addresses to write, None if they are right or cannot be judged for now."""
    wanted = wanted_addresses(
        node.name, ips, facts, prefer_ipv6=config.prefer_ipv6, discover=effects.public_ip_discovery
    )
    if wanted == node.status.addresses:
        return None
    present = {address.address for address in node.status.addresses}
    good = node.initialized and present.issuperset(map(str, ips))
    unjudged = ("feature", "publicIPDiscovery") in effects.retained
    return None if good and (unjudged or misses_node_ips(ips, facts)) else wanted


def _outcome(node: Node, *, changed: bool) -> Outcome:
    if not node.initialized:
        return "initialized"
    return "updated" if changed else "unchanged"


def _reason(outcome: Outcome, facts: MachineFacts, ip: str, recognized_by: str, found: Claimed) -> str:
    told = {
        "initialized": f"{facts.platform.platform} machine at {ip}, recognised by {recognized_by}",
        "updated": "the Node did not say what its machine and the rules say",
    }.get(outcome, AS_IT_SHOULD_BE)
    if found.left_to_talos:
        told += f"; left to the machine config, which sets them: {', '.join(found.left_to_talos)}"
    return told


def _notices(
    node: Node, facts: MachineFacts, effects: RuleEffects, recognized_by: str, found: Claimed
) -> Iterable[Notice]:
    yield from found.notices
    yield from of_skipped(effects.skipped)
    if found.invalid:
        refused = ", ".join(f"{key}={value[:100]!r}" for key, value in found.invalid)
        text = f"labels not written, because Kubernetes does not take such a value: {refused}"
        yield Notice(reason="LabelSkipped", message=text)
    says = "a rule says" if given_by_rule(facts, effects) else "the machine reports"
    contradiction = mismatch(node, effects.platform, says=says)
    if contradiction:
        yield Notice(reason="ProviderIDMismatch", message=contradiction)
    if recognized_by == "system-uuid":
        text = f"Talos calls this machine {facts.node_name!r} (kubelet's hostname-override?): "
        yield Notice(
            reason="RecognizedBySystemUUID", message=text + "recognised by systemUUID", warning=False
        )
