"""Which Nodes receive the traffic of a Service: Kubernetes' own rule, and what this cloud can reach."""

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, ip_address
from typing import Final, Literal

import msgspec

from libs.clouds.balancers import ADDRESS_TYPES, Target
from libs.common.cloud_config.model import NodeSelectorTerm
from libs.common.cloud_config.selectors import match_selector
from libs.common.contract.ip_addresses import explain_unreachable
from libs.common.contract.node import Node
from libs.common.go_values import parse_bool

EXCLUDE_LABEL: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
# The cluster autoscaler drains the Node, and deletes it soon.
AUTOSCALER_TAINT: Final = "ToBeDeletedByClusterAutoscaler"

# Why a Node is no target. All but "not_selected" hold for every Service.
LeftOutReason = Literal[
    "deleting", "autoscaler", "excluded", "foreign_cloud", "no_provider_id", "no_address", "not_selected"
]


class TargetRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which Nodes this cloud can reach."""

    parse_provider_id: Callable[[str], str | None]  # that of the account's cloud
    # Providers' prefixes of machines that are targets by address, such as "hrobot://"; empty = switched off
    address_prefixes: tuple[str, ...] = ()
    needs_ipv4: bool = False
    uses_addresses: bool = False  # targets are addresses, also those of instances of this cloud


class LeftOut(msgspec.Struct, frozen=True):
    """A Node that is no target, for operators."""

    node: str
    reason: LeftOutReason


class TargetSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The Nodes that become targets, and those that stay targets if they are."""

    targets: frozenset[Target] = frozenset()
    # What only an unreadable node selector or type of address keeps from `targets`: it stays what it is.
    undecided: frozenset[Target] = frozenset()
    # Of Nodes that are excluded, and of those that were seen deleted: their addresses may become another's.
    removed: frozenset[Target] = frozenset()
    is_complete: bool  # whether the table has all Nodes; otherwise unknown targets stay
    left_out: tuple[LeftOut, ...] = ()

    def plan(self, current: Iterable[Target]) -> tuple[Target, ...]:
        """Return the desired targets of a balancer with these current ones, in their order."""
        kept = {
            target
            for target in current
            if target in self.undecided or (not self.is_complete and target not in self.removed)
        }
        return tuple(sorted(self.targets | kept))


def select_targets(
    nodes: Iterable[Node],
    *,
    deleted: Iterable[Node],
    is_complete: bool,
    selector: tuple[NodeSelectorTerm, ...] | None,
    address_types: tuple[str, ...] | None = ADDRESS_TYPES,
    rules: TargetRules,
) -> TargetSelection:
    """Select the targets among the Nodes of the table.

    `deleted` are Nodes that were seen deleted, as they were last. `selector` and `address_types` are those
    of `ParsedRequest`.
    """
    selected: set[Target] = set()
    undecided: set[Target] = set()
    removed: set[Target] = set()
    left_out = []
    for node in deleted:
        removed |= _find_targets(node, rules, address_types)[0]
    for node in nodes:
        found, reason = _find_targets(node, rules, address_types)
        reason = _explain_excluded(node) or reason
        if reason is None and selector and not _is_selected(node, selector):
            reason = "not_selected"
        if reason is not None:
            left_out.append(LeftOut(node.name, reason))
            removed |= found
        elif selector is None:
            undecided |= found
        else:
            unclear = {each for each in found if each.address and address_types is None}
            undecided |= unclear
            selected |= found - unclear
    return TargetSelection(
        targets=frozenset(selected),
        undecided=frozenset(undecided),
        removed=frozenset(removed - selected - undecided),
        is_complete=is_complete,
        left_out=tuple(sorted(left_out, key=lambda each: each.node)),
    )


def _explain_excluded(node: Node) -> LeftOutReason | None:
    """Return why Kubernetes' rule excludes the Node. Ready does not count: health checks decide."""
    if node.metadata.deletion_timestamp is not None:
        return "deleting"
    if any(taint.key == AUTOSCALER_TAINT for taint in node.spec.taints):
        return "autoscaler"
    return "excluded" if _has_exclude_label(node) else None


def _has_exclude_label(node: Node) -> bool:
    """An unreadable value excludes."""
    try:
        return parse_bool(node.labels.get(EXCLUDE_LABEL, "false"))
    except ValueError:
        return True


def _find_targets(
    node: Node, rules: TargetRules, address_types: tuple[str, ...] | None
) -> tuple[frozenset[Target], LeftOutReason | None]:
    """Return the Node as a target, or why it is none. Without types of addresses: all that it may be."""
    provider_id = node.spec.provider_id
    if not provider_id:
        return frozenset(), "no_provider_id"
    is_by_address = provider_id.startswith(rules.address_prefixes)
    instance_id = None if is_by_address else rules.parse_provider_id(provider_id)
    if instance_id is None and not is_by_address:
        return frozenset(), "foreign_cloud"
    addresses = _list_addresses(node, rules, address_types or ADDRESS_TYPES)
    if instance_id is None or rules.uses_addresses:
        found = frozenset(Target(address=each) for each in addresses[: 1 if address_types else None])
        return found, None if found else "no_address"
    # A Node without addresses has just joined, and an instance is reached by its id.
    if rules.needs_ipv4 and node.status.addresses and not addresses:
        return frozenset(), "no_address"
    return frozenset({Target(instance_id=instance_id)}), None


def _list_addresses(node: Node, rules: TargetRules, types: tuple[str, ...]) -> list[str]:
    """Return the Node's addresses that the cloud can reach, those of the first type first."""
    return [
        each.address
        for kind in types
        for each in node.status.addresses
        if each.type == kind and _is_usable(each.address, rules)
    ]


def _is_usable(text: str, rules: TargetRules) -> bool:
    """A kubelet may write any text. Octavia rejects all targets of a pool for one link-local address."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    has_family = isinstance(address, IPv4Address) or not rules.needs_ipv4
    return has_family and not explain_unreachable(address)


def _is_selected(node: Node, selector: tuple[NodeSelectorTerm, ...]) -> bool:
    return match_selector(selector, node.labels, subject_name="the Node", not_in_matches_absent=True).is_match
