"""What a Node should become, from what it is and what its machine says: a value, and the reason for it."""

from typing import Final, Literal

import msgspec

from libs.common.events import NodeUnreachable
from libs.common.machine import MachineFacts
from libs.common.node import CONDITION_BLOCKED, TAINT_UNINITIALIZED, Node, NodeAddress
from libs.common.node_ips import IP, BadNodeIP, first_of_each_family, node_ips
from libs.common.patch import NodeChanges
from services.labeler.addresses import misses_node_ips, wanted_addresses
from services.labeler.blocked import (
    Blocked,
    by_bad_node_ip,
    by_fault,
    by_taint_of_talos,
    by_waiting_for_metadata,
)
from services.labeler.labels import LabelChanges, label_changes
from services.labeler.ownership import why_not_ours
from services.labeler.provider_id import mismatch, provider_id_of, why_not_yet
from services.labeler.taints import put_back_by_talos, taints_to_remove

AS_IT_SHOULD_BE: Final = "the Node says what its machine says"

Outcome = Literal["initialized", "updated", "unchanged", "blocked", "not-ours"]


class Global(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every Node of the cluster."""

    cluster_name: str = ""  # "" = the name that Talos knows
    prefer_ipv6: bool = False


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an operator should know and that stops nothing: one Event, once."""

    reason: str
    message: str
    warning: bool = True


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

    @property
    def writes(self) -> tuple[str, ...]:
        return self.status_writes + self.node_writes


def plan_node(node: Node, facts: MachineFacts, recognized_by: str, config: Global) -> Plan:
    """All that differs between the Node and what it should be; nothing for one that is as it should be.

    A Node that is not ours, or whose machine cannot be told for certain yet, is not touched at all.
    """
    foreign = why_not_ours(node, facts.platform)
    if foreign:
        return _not_ours(node, foreign)
    ips = node_ips(node.provided_node_ip)
    if isinstance(ips, BadNodeIP):
        return _blocked(node, by_bad_node_ip(ips.reason))
    waiting = why_not_yet(node, facts)
    if waiting:
        return _blocked(node, by_waiting_for_metadata(waiting))
    if put_back_by_talos(node) and not node.initialized:
        return _blocked(node, by_taint_of_talos())
    return _plan_ours(node, facts, recognized_by, config, ips)


def plan_unreachable(node: Node, event: NodeUnreachable) -> Plan:
    """A Node whose machine gave no facts: an initialised one is left as it is, another one has to wait."""
    platform = event.last_known.platform if event.last_known else None
    foreign = why_not_ours(node, platform)
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


def _plan_ours(
    node: Node, facts: MachineFacts, recognized_by: str, config: Global, ips: tuple[IP, ...]
) -> Plan:
    labels = label_changes(node, facts.platform, config.cluster_name or facts.cluster_name)
    first_ip = str(first_of_each_family(ips, prefer_ipv6=config.prefer_ipv6)[0])
    changes = NodeChanges(
        labels=labels.labels,
        provider_id=None if node.spec.provider_id else provider_id_of(facts.platform, first_ip),
        remove_taints=taints_to_remove(node),
    )
    addresses = _addresses(node, facts, config, ips)
    unblock = node.condition(CONDITION_BLOCKED) is not None
    status_writes = _status_in_words(addresses, unblock=unblock)
    node_writes = _changes_in_words(changes)
    outcome = _outcome(node, changed=bool(status_writes or node_writes))
    return Plan(
        outcome=outcome,
        reason=_reason(outcome, facts, first_ip, recognized_by, labels),
        addresses=addresses,
        unblock=unblock,
        changes=changes,
        notices=_notices(node, facts, recognized_by, labels),
        status_writes=status_writes,
        node_writes=node_writes,
    )


def _blocked(node: Node, blocked: Blocked) -> Plan:
    if node.initialized:  # the last good state stays; the Node is somebody's home by now
        plan = Plan(outcome="unchanged", reason=f"left as it is: {blocked.message}")
        return _without_old_condition(node, plan)
    return Plan(outcome="blocked", reason=blocked.message, blocked=blocked)


def _not_ours(node: Node, reason: str) -> Plan:
    return _without_old_condition(node, Plan(outcome="not-ours", reason=reason))


def _without_old_condition(node: Node, plan: Plan) -> Plan:
    """The plan for a Node that is left alone, but for a condition of ours that is not true any more.

    Somebody else has initialised it: saying for ever that it is blocked would only raise false alarms.
    """
    stale = node.initialized and node.condition(CONDITION_BLOCKED) is not None
    if not stale or node.metadata.deletion_timestamp is not None:
        return plan
    writes = _status_in_words(None, unblock=True)
    return msgspec.structs.replace(plan, outcome="updated", unblock=True, status_writes=writes)


def _addresses(
    node: Node, facts: MachineFacts, config: Global, ips: tuple[IP, ...]
) -> tuple[NodeAddress, ...] | None:
    """The addresses to write, None if they are right or cannot be judged from a partial look."""
    wanted = wanted_addresses(node.name, ips, facts, prefer_ipv6=config.prefer_ipv6)
    if wanted == node.status.addresses:
        return None
    present = {address.address for address in node.status.addresses}
    good = node.initialized and present.issuperset(map(str, ips))
    return None if good and misses_node_ips(ips, facts) else wanted


def _outcome(node: Node, *, changed: bool) -> Outcome:
    if not node.initialized:
        return "initialized"
    return "updated" if changed else "unchanged"


def _reason(outcome: Outcome, facts: MachineFacts, ip: str, recognized_by: str, labels: LabelChanges) -> str:
    told = {
        "initialized": f"{facts.platform.platform} machine at {ip}, recognised by {recognized_by}",
        "updated": "the Node did not say what its machine says",
    }.get(outcome, AS_IT_SHOULD_BE)
    if labels.left_to_talos:
        told += f"; left to the machine config, which sets them: {', '.join(labels.left_to_talos)}"
    return told


def _notices(node: Node, facts: MachineFacts, recognized_by: str, labels: LabelChanges) -> tuple[Notice, ...]:
    notices = []
    if labels.invalid:
        refused = ", ".join(f"{key}={value[:100]!r}" for key, value in labels.invalid)
        text = f"labels not written, because Kubernetes does not take such a value: {refused}"
        notices.append(Notice(reason="LabelSkipped", message=text))
    contradiction = mismatch(node, facts.platform)
    if contradiction:
        notices.append(Notice(reason="ProviderIDMismatch", message=contradiction))
    if recognized_by == "system-uuid":
        text = f"Talos calls this machine {facts.node_name!r} (kubelet's hostname-override?): "
        known = Notice(
            reason="RecognizedBySystemUUID", message=text + "recognised by systemUUID", warning=False
        )
        notices.append(known)
    return tuple(notices)


def _status_in_words(addresses: tuple[NodeAddress, ...] | None, *, unblock: bool) -> tuple[str, ...]:
    lines = []
    if addresses is not None:
        lines.append("addresses " + ", ".join(f"{each.type}={each.address}" for each in addresses))
    if unblock:
        lines.append(f"condition {CONDITION_BLOCKED} removed")
    return tuple(lines)


def _changes_in_words(changes: NodeChanges) -> tuple[str, ...]:
    labels = (
        f"label {key} removed" if value is None else f"label {key}={value}"
        for key, value in changes.labels.items()
    )
    provider_id = () if changes.provider_id is None else (f"providerID {changes.provider_id}",)
    taints = (f"taint {TAINT_UNINITIALIZED}:{taint.effect} removed" for taint in changes.remove_taints)
    return (*labels, *provider_id, *taints)
