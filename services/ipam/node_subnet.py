"""Which IPv6 subnet a node's machine is in, for CloudAllocator: its pods take their addresses from there."""

from libs.common.contract.ip_addresses import IP
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.node_ips import InvalidNodeIP, parse_node_ips
from libs.common.contract.public_addresses import (
    is_internal_link,
    is_permanent,
    lacks_node_ips,
    parse_public_ip,
)
from services.ipam.networks import parse_network
from services.ipam.subnet_pools import derive_subnet_pool
from services.ipam.unallocated_reasons import CannotAllocate, NotReady


def find_node_subnet_pool(
    node: Node, facts: MachineFacts | None
) -> tuple[str, int] | NotReady | CannotAllocate | None:
    """CIDR and node mask of its first subnet that can hold pods; None if it has none beyond single addresses.

    What is not known yet is a Wait: Talos that does not answer, and a list without the kubelet's own
    addresses. A node given the cluster's CIDR in the meantime would keep it for ever.
    """
    if facts is None:
        return NotReady("Talos has not told the addresses of its machine yet, and they decide its IPv6 pool")
    ips = parse_node_ips(node.provided_node_ip) if node.provided_node_ip else ()
    if isinstance(ips, InvalidNodeIP):
        return NotReady(
            f"the kubelet's node IP cannot be compared with its machine's addresses: {ips.reason}"
        )
    if not facts.addresses or lacks_node_ips(ips, facts):
        return NotReady("Talos does not list all addresses of its kubelet yet, and they decide its IPv6 pool")
    return _find_first_usable(_list_public_subnets(facts, _list_public_ipv6(node, ips)))


def _find_first_usable(prefixes: tuple[str, ...]) -> tuple[str, int] | CannotAllocate | None:
    reasons = []
    for prefix in prefixes:
        try:
            pool = derive_subnet_pool(prefix)
        except ValueError as error:
            reasons.append(str(error))
            continue
        if pool is None:
            continue
        cidr, mask = pool
        if parse_network(cidr).prefix < mask:
            return pool
        # The reference gives it to one node, whose Talos then drops the address that lies in it.
        reasons.append(f"the subnet {cidr} is a single block, which holds the node's own address")
    return CannotAllocate("it has no IPv6 subnet for pods: " + "; ".join(reasons)) if reasons else None


def _list_public_subnets(facts: MachineFacts, only: frozenset[IP]) -> tuple[str, ...]:
    """Address and prefix length of public IPv6 addresses on the machine's links, those of `only` if any.

    The reference prepends each permanent one: the last of them that Talos lists is the first.
    """
    permanent: list[str] = []
    others: list[str] = []
    for status in facts.addresses:
        ip = parse_public_ip(status.address)
        if ip is None or ip.version == 4 or is_internal_link(status.link) or (only and ip not in only):
            continue
        (permanent if is_permanent(status) else others).append(f"{ip}/{_prefix_length(status)}")
    return (*reversed(permanent), *others)


def _list_public_ipv6(node: Node, ips: tuple[IP, ...]) -> frozenset[IP]:
    """Those by which Kubernetes knows the node: among several subnets they say which is meant."""
    known = (a.address for a in node.status.addresses if a.type in ("InternalIP", "ExternalIP"))
    public = (parse_public_ip(text) for text in (*known, *map(str, ips)))
    return frozenset(ip for ip in public if ip is not None and ip.version == 6)


def _prefix_length(status: AddressStatus) -> str:
    return status.address.partition("/")[2] or "128"
