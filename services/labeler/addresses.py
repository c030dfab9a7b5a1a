"""status.addresses as the reference makes them: from the kubelet's own IPs and what the machine says."""

from collections.abc import Iterable
from typing import Final

from libs.common.machine import AddressStatus, MachineFacts
from libs.common.node import NodeAddress
from libs.common.node_ips import IP, first_of_each_family, parse_ip
from libs.common.platforms import PUBLIC_ADDRESSES_ON_LINKS
from libs.common.public_addresses import EXTERNAL_LINK, bare, is_inside, is_permanent, public_ip

_NAME_LIMIT: Final = 253  # of a DNS name


def wanted_addresses(
    node_name: str, ips: tuple[IP, ...], facts: MachineFacts, *, prefer_ipv6: bool, discover: bool = False
) -> tuple[NodeAddress, ...]:
    """All of the Node's addresses in their final order; `ips` are those of the annotation, in its order.

    `discover`: public addresses on the machine's links count on every platform, after those that its cloud
    names (a rule's features.publicIPDiscovery).
    """
    inside = first_of_each_family(ips, prefer_ipv6=prefer_ipv6)
    outside = first_of_each_family(
        _external_candidates(facts, ips, discover=discover), prefer_ipv6=prefer_ipv6
    )
    hostname = facts.platform.hostname or node_name  # metal, vmware and others tell none
    found = [
        *(NodeAddress(type="InternalIP", address=str(ip)) for ip in inside),
        *(NodeAddress(type="ExternalIP", address=str(ip)) for ip in outside),
        NodeAddress(type="Hostname", address=node_name),
    ]
    if hostname.find(".") > 0 and _could_be_a_name(hostname):
        found.append(NodeAddress(type="InternalDNS", address=hostname))
    return _with_node_ips_first(found, [str(ip) for ip in ips])


def _external_candidates(facts: MachineFacts, ips: tuple[IP, ...], *, discover: bool) -> tuple[IP, ...]:
    if facts.platform.platform in PUBLIC_ADDRESSES_ON_LINKS:
        return _discovered(facts.addresses, ips)
    published = (parse_ip(bare(status)) for status in facts.addresses if status.link == EXTERNAL_LINK)
    named = tuple(ip for ip in published if ip is not None and ip not in ips)  # those are internal ones
    return (*named, *_discovered(facts.addresses, ips)) if discover else named


def _discovered(statuses: Iterable[AddressStatus], ips: tuple[IP, ...]) -> tuple[IP, ...]:
    """Public addresses on the machine's links: the first IPv4, and the *last* permanent IPv6, come first."""
    ipv4: list[IP] = []
    ipv6: list[IP] = []
    for status in statuses:
        ip = public_ip(bare(status))
        if ip is None or is_inside(status.link) or ip in ips:
            continue
        if ip.version == 4:
            ipv4.append(ip)
        elif is_permanent(status):
            ipv6.insert(0, ip)  # the reference prepends each, so the last one that Talos lists is chosen
        else:
            ipv6.append(ip)
    return (*ipv4, *ipv6)


def _with_node_ips_first(found: list[NodeAddress], ips: list[str]) -> tuple[NodeAddress, ...]:
    """Kubernetes' GetNodeAddressesFromNodeIP: what matches a provided IP goes first, others of its type go.

    Dictionary keys keep the order and drop the second of two equal ones.
    """
    enforced = dict.fromkeys(address for ip in ips for address in found if address.address == ip)
    types = {address.type for address in enforced}
    return tuple(enforced | dict.fromkeys(address for address in found if address.type not in types))


def _could_be_a_name(hostname: str) -> bool:
    return len(hostname) <= _NAME_LIMIT and hostname.isprintable() and " " not in hostname
