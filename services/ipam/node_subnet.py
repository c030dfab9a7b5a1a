"""Finds the IPv6 subnet of a Node's machine, from which CloudAllocator allocates addresses for pods."""

from libs.common.contract.ip_addresses import IP, InvalidNodeIP, parse_node_ips
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.public_addresses import (
    counts,
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
    """Return CIDR and node mask of its first subnet for pods; None if it has only single addresses.

    Returns NotReady while Talos does not answer, or reports addresses without the kubelet's own. A Node that
    got a block of the cluster's CIDR meanwhile would keep it permanently.
    """
    if facts is None:
        return NotReady("Talos has not reported the machine's addresses yet, and they decide its IPv6 pool")
    ips = parse_node_ips(node.provided_node_ip) if node.provided_node_ip else ()
    if isinstance(ips, InvalidNodeIP):
        return NotReady(
            f"the kubelet's node IP is invalid and cannot be compared with its machine: {ips.reason}"
        )
    if not facts.addresses or lacks_node_ips(ips, facts):
        return NotReady("Talos does not list all its kubelet's addresses yet, and they decide its IPv6 pool")
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
        # The reference assigns it to one node, and Talos then removes the node's address in it.
        reasons.append(f"the subnet {cidr} is a single block, which contains the node's own address")
    return CannotAllocate("it has no IPv6 subnet for pods: " + "; ".join(reasons)) if reasons else None


def _list_public_subnets(facts: MachineFacts, only: frozenset[IP]) -> tuple[str, ...]:
    """Return the machine's public IPv6 addresses with prefix length; if `only` is not empty, only those.

    The reference prepends each permanent address: so the last one that Talos lists comes first.
    """
    permanent: list[str] = []
    others: list[str] = []
    for status in facts.addresses:
        ip = parse_public_ip(status.address)
        if ip is None or ip.version == 4 or (only and ip not in only) or not counts(status, facts):
            continue
        (permanent if is_permanent(status) else others).append(f"{ip}/{_prefix_length(status)}")
    return (*reversed(permanent), *others)


def _list_public_ipv6(node: Node, ips: tuple[IP, ...]) -> frozenset[IP]:
    """Return the public IPv6 addresses in the Node object: they select one of several subnets."""
    known = (a.address for a in node.status.addresses if a.type in ("InternalIP", "ExternalIP"))
    public = (parse_public_ip(text) for text in (*known, *map(str, ips)))
    return frozenset(ip for ip in public if ip is not None and ip.version == 6)


def _prefix_length(status: AddressStatus) -> str:
    return status.address.partition("/")[2] or "128"
