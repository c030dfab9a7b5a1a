"""Plans status.addresses like the reference controller: from the kubelet's IPs and the machine's facts."""

from collections.abc import Iterable
from typing import Final

from libs.common.contract.ip_addresses import IP, parse_interface_ip
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import NodeAddress
from libs.common.contract.node_ips import pick_one_per_family
from libs.common.contract.platforms import PLATFORMS_WITH_PUBLIC_LINK_ADDRESSES
from libs.common.contract.public_addresses import (
    EXTERNAL_LINK,
    is_internal_link,
    is_permanent,
    parse_public_ip,
)

_MAX_NAME_LENGTH: Final = 253  # characters of a DNS name


def plan_addresses(
    node_name: str,
    node_ips: tuple[IP, ...],
    facts: MachineFacts,
    *,
    prefer_ipv6: bool,
    discovers_public_ips: bool = False,
) -> tuple[NodeAddress, ...]:
    """Return all addresses of the Node in their final order; `node_ips` are in the annotation's order.

    `discovers_public_ips` (a rule's features.publicIPDiscovery) adds public addresses of the machine's links
    on every platform, after those that its cloud names.
    """
    internal = pick_one_per_family(node_ips, prefer_ipv6=prefer_ipv6)
    external = pick_one_per_family(
        _external_candidates(facts, node_ips, discover=discovers_public_ips), prefer_ipv6=prefer_ipv6
    )
    hostname = facts.platform.hostname or node_name  # metal, vmware and others report none
    found = [
        *(NodeAddress(type="InternalIP", address=str(ip)) for ip in internal),
        *(NodeAddress(type="ExternalIP", address=str(ip)) for ip in external),
        NodeAddress(type="Hostname", address=node_name),
    ]
    if hostname.find(".") > 0 and _is_possible_name(hostname):
        found.append(NodeAddress(type="InternalDNS", address=hostname))
    return _order_node_ips_first(found, [str(ip) for ip in node_ips])


def _external_candidates(facts: MachineFacts, ips: tuple[IP, ...], *, discover: bool) -> tuple[IP, ...]:
    if facts.platform.platform in PLATFORMS_WITH_PUBLIC_LINK_ADDRESSES:
        return _discover_public_ips(facts.addresses, ips)
    published = (
        parse_interface_ip(status.address) for status in facts.addresses if status.link == EXTERNAL_LINK
    )
    named = tuple(ip for ip in published if ip is not None and ip not in ips)  # `ips` are internal addresses
    return (*named, *_discover_public_ips(facts.addresses, ips)) if discover else named


def _discover_public_ips(statuses: Iterable[AddressStatus], ips: tuple[IP, ...]) -> tuple[IP, ...]:
    """Return public addresses of the links, with the first IPv4 and the *last* permanent IPv6 in front."""
    ipv4: list[IP] = []
    ipv6: list[IP] = []
    for status in statuses:
        ip = parse_public_ip(status.address)
        if ip is None or is_internal_link(status.link) or ip in ips:
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


def _is_possible_name(hostname: str) -> bool:
    return len(hostname) <= _MAX_NAME_LENGTH and hostname.isprintable() and " " not in hostname
