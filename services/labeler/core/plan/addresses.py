"""Plans status.addresses like the reference controller: from the kubelet's IPs and the machine's facts.

The labeler uses only addresses that the machine has, because the kubelet writes the annotation. An address of
another machine would become an InternalIP, which the API server dials, and part of a providerID, which is
immutable.
"""

from typing import Final

import msgspec

from libs.common.cloud_config.model import ExternalIPs
from libs.common.contract.dns_names import is_node_dns_name
from libs.common.contract.instances import derive_native_provider_id
from libs.common.contract.ip_addresses import (
    IP,
    InvalidNodeIP,
    find_local_range,
    is_global_unicast,
    is_private,
    parse_interface_ip,
    parse_ip,
    parse_node_ips,
    pick_one_per_family,
)
from libs.common.contract.machine import ForeignNodeIP, MachineFacts
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION, Node, NodeAddress
from libs.common.contract.platforms import PLATFORMS_WITH_PUBLIC_LINK_ADDRESSES
from libs.common.contract.public_addresses import (
    EXTERNAL_LINK,
    counts,
    is_permanent,
    lacks_node_ips,
    list_machine_ips,
)
from services.labeler.core.blocker import Notice, block
from services.labeler.core.plan.plan import PlanInput, PlanPart

_DEFAULT_EXTERNAL_IPS: Final = ExternalIPs()


class ProvidedNodeIPs(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of one annotation in its order, split by whether the labeler may use them."""

    usable: tuple[IP, ...]
    unusable: tuple[IP, ...] = ()
    foreign_node_ips: tuple[ForeignNodeIP, ...] = ()  # announced addresses where another machine answered
    problem: str = ""  # why the annotation is invalid; then it gives no addresses

    def select_first(self, *, prefer_ipv6: bool, usable_only: bool = True) -> IP | None:
        """Return the first address of the preferred family, else of the other family."""
        ips = self.usable if usable_only else (*self.usable, *self.unusable)
        return next(iter(pick_one_per_family(ips, prefer_ipv6=prefer_ipv6)), None)


def verify_provided_node_ips(node: Node, facts: MachineFacts) -> ProvidedNodeIPs:
    """Parse the annotation and split its addresses by the machine's facts.

    An initialized Node keeps an InternalIP that its machine does not list, unless another machine answers
    there: the list is incomplete while a link is down.
    """
    ips = parse_node_ips(node.provided_node_ip)
    if isinstance(ips, InvalidNodeIP):
        return ProvidedNodeIPs(usable=(), problem=ips.reason)
    foreign = tuple(each for each in facts.foreign_node_ips if parse_ip(each.address) in ips)
    own = list_machine_ips(facts)
    kept = (
        _internal_ips(node) - {parse_ip(each.address) for each in foreign} if node.is_initialized else set()
    )
    usable = tuple(ip for ip in ips if ip in own or ip in kept)
    return ProvidedNodeIPs(
        usable=usable, unusable=tuple(ip for ip in ips if ip not in usable), foreign_node_ips=foreign
    )


def plan_addresses(inputs: PlanInput, node_ips: ProvidedNodeIPs) -> PlanPart:
    """Plan the addresses; blocked if the Node is uninitialized and announces no address of its machine."""
    return PlanPart(
        addresses=_find_changed_addresses(inputs, node_ips.usable) if node_ips.usable else None,
        notices=build_unusable_ip_notices(node_ips, inputs.facts),
        blocker=_find_blocker(inputs, node_ips),
    )


def list_addresses(
    node_name: str,
    node_ips: tuple[IP, ...],
    facts: MachineFacts,
    *,
    prefer_ipv6: bool,
    discovers_public_ips: bool = False,
    external_ips: ExternalIPs = _DEFAULT_EXTERNAL_IPS,
) -> tuple[NodeAddress, ...]:
    """Return all addresses of the Node in their final order; `node_ips` are in the annotation's order.

    `discovers_public_ips` (a rule's features.publicIPDiscovery) adds public addresses of the machine's links
    on every platform, after those that its cloud names. `external_ips` limits both.
    """
    internal = pick_one_per_family(node_ips, prefer_ipv6=prefer_ipv6)
    external = pick_one_per_family(
        _external_candidates(facts, node_ips, external_ips, discover=discovers_public_ips),
        prefer_ipv6=prefer_ipv6,
    )
    hostname = facts.platform.hostname or node_name  # metal, vmware and others report none
    found = [
        *(NodeAddress(type="InternalIP", address=str(ip)) for ip in internal),
        *(NodeAddress(type="ExternalIP", address=str(ip)) for ip in external),
        NodeAddress(type="Hostname", address=node_name),
    ]
    if "." in hostname and is_node_dns_name(hostname, node_name):
        found.append(NodeAddress(type="InternalDNS", address=hostname))
    return _order_node_ips_first(found, [str(ip) for ip in node_ips])


def build_unusable_ip_notices(node_ips: ProvidedNodeIPs, facts: MachineFacts) -> tuple[Notice, ...]:
    """Build the notice about announced addresses that the labeler does not use."""
    if not node_ips.unusable:
        return ()
    addresses = ", ".join(map(str, node_ips.unusable))
    others = "".join(
        f"; machine {each.node_name} answers at {each.address}" for each in node_ips.foreign_node_ips
    )
    text = (
        f"the kubelet announces {addresses} (annotation {PROVIDED_NODE_IP_ANNOTATION}), which machine "
        f"{facts.node_name} does not have: not used{others}; correct --node-ip of the kubelet"
    )
    return (Notice(reason="NodeIPNotUsed", message=text),)


def _find_blocker(inputs: PlanInput, node_ips: ProvidedNodeIPs) -> Notice | None:
    """Return the blocker of a joining Node without a usable address or with a foreign one.

    A fallback providerID contains an address. If the machine does not have it, no other address replaces it:
    the machine may have this one again a moment later.
    """
    node, machine = inputs.node, inputs.facts.node_name
    if not node.is_initialized and node_ips.foreign_node_ips:
        answers = " and ".join(
            f"machine {each.node_name} answers at {each.address}" for each in node_ips.foreign_node_ips
        )
        return block("NodeIPOfAnotherMachine", answers=answers, machine=machine)
    if not node.is_initialized and not node_ips.usable:
        addresses = " and ".join(map(str, node_ips.unusable))
        return block("ProvidedNodeIPInvalid", why=f"machine {machine} does not have {addresses}")
    if node.spec.provider_id or derive_native_provider_id(inputs.effects.platform):
        return None
    node_ip = node_ips.select_first(prefer_ipv6=inputs.config.prefer_ipv6, usable_only=False)
    if node_ip in node_ips.usable:
        return None
    return block("NodeIPNotOnMachine", node_ip=node_ip, machine=machine)


def _find_changed_addresses(inputs: PlanInput, ips: tuple[IP, ...]) -> tuple[NodeAddress, ...] | None:
    """Return the addresses to write; None if they are correct or cannot be determined now."""
    node, facts, effects = inputs.node, inputs.facts, inputs.effects
    desired = list_addresses(
        node.name,
        ips,
        facts,
        prefer_ipv6=inputs.config.prefer_ipv6,
        discovers_public_ips=effects.public_ip_discovery,
        external_ips=inputs.config.external_ips,
    )
    if desired == node.status.addresses:
        return None
    present = {address.address for address in node.status.addresses}
    has_node_ips = node.is_initialized and present.issuperset(map(str, ips))
    is_unevaluated = ("feature", "publicIPDiscovery") in effects.retained or _lacks_named_addresses(inputs)
    return None if has_node_ips and (is_unevaluated or lacks_node_ips(ips, facts)) else desired


def _lacks_named_addresses(inputs: PlanInput) -> bool:
    """Return whether a cloud account may have named addresses before that it does not name now."""
    supplement = inputs.facts.supplement
    is_awaited = supplement is not None and bool(supplement.why_awaited)
    return is_awaited and not inputs.config.external_ips.discovery


def _external_candidates(
    facts: MachineFacts, ips: tuple[IP, ...], external_ips: ExternalIPs, *, discover: bool
) -> tuple[IP, ...]:
    if external_ips.discovery and facts.platform.platform in PLATFORMS_WITH_PUBLIC_LINK_ADDRESSES:
        return _discover_public_ips(facts, ips, external_ips)
    published = (
        parse_interface_ip(status.address) for status in facts.addresses if status.link == EXTERNAL_LINK
    )
    named = tuple(  # `ips` are internal addresses
        ip
        for ip in published
        if ip is not None and ip not in ips and _may_be_external(ip, external_ips, is_named=True)
    )
    if not (external_ips.discovery and discover):
        return named
    return (*named, *_discover_public_ips(facts, ips, external_ips))


def _may_be_external(ip: IP, external_ips: ExternalIPs, *, is_named: bool) -> bool:
    """Return whether the settings allow the address; `is_named`: its cloud names it as external.

    A wide network such as 0.0.0.0/0 selects no private and no shared address. csr denies an address that
    others cannot reach.
    """
    if not is_global_unicast(ip) or any(ip in network for network in external_ips.exclude_cidrs):
        return False
    local = find_local_range(ip)
    of_family = [each for each in external_ips.include_cidrs if each.version == ip.version]
    including = [network for network in of_family if ip in network]
    if local is not None and any(network.prefixlen >= local.prefixlen for network in including):
        return True
    if of_family and not including:
        return False
    return local is None or (is_named and is_private(ip))


def _discover_public_ips(
    facts: MachineFacts, ips: tuple[IP, ...], external_ips: ExternalIPs
) -> tuple[IP, ...]:
    """Return public addresses of the links, with the first IPv4 and the *last* permanent IPv6 in front."""
    ipv4: list[IP] = []
    ipv6: list[IP] = []
    for status in facts.addresses:
        ip = parse_interface_ip(status.address)
        if ip is None or ip in ips or not counts(status, facts):
            continue
        if not _may_be_external(ip, external_ips, is_named=False):
            continue
        if ip.version == 4:
            ipv4.append(ip)
        elif is_permanent(status):
            ipv6.insert(0, ip)  # the reference prepends each, so it chooses the last one that Talos lists
        else:
            ipv6.append(ip)
    return (*ipv4, *ipv6)


def _order_node_ips_first(found: list[NodeAddress], ips: list[str]) -> tuple[NodeAddress, ...]:
    """Order addresses like Kubernetes' GetNodeAddressesFromNodeIP.

    Addresses that match a node IP come first; other addresses of their types are removed. The dictionary
    keeps the order and removes duplicates.
    """
    enforced = dict.fromkeys(address for ip in ips for address in found if address.address == ip)
    types = {address.type for address in enforced}
    return tuple(enforced | dict.fromkeys(address for address in found if address.type not in types))


def _internal_ips(node: Node) -> set[IP | None]:
    return {parse_ip(each.address) for each in node.status.addresses if each.type == "InternalIP"}
