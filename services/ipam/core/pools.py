"""Selects the pools that may provide pod CIDRs for a Node, in order."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Interface
from typing import Final, Literal, get_args

import msgspec

from libs.common.cloud_config.fact_fields import FactValues, fact_values, find_field
from libs.common.cloud_config.model import Pool as PoolSpec
from libs.common.cloud_config.selectors import match_selector
from libs.common.contract.ip_addresses import IP, InvalidNodeIP, parse_node_ips
from libs.common.contract.machine import AddressStatus, MachineFacts, why_metadata_incomplete
from libs.common.contract.networks import Family, explain_no_blocks, parse_network
from libs.common.contract.node import Node
from libs.common.contract.public_addresses import (
    counts,
    is_permanent,
    lacks_node_ips,
    parse_public_ip,
)

Allocator = Literal["RangeAllocator", "CloudAllocator"]

DEFAULT_POOL: Final = "default"  # the cluster's own CIDRs, if the configuration has no pools
NODE_SUBNET_POOL: Final = "node-subnet"  # the name of all pools that CloudAllocator derives
_FAMILIES: Final[tuple[Family, ...]] = get_args(Family)

# Longest subnet prefix of the row, and the bits by which a block's prefix is longer.
_ROWS: Final = ((99, 16), (105, 8), (111, 4), (118, 2), (119, 1), (123, 0))
_MIN_PREFIX: Final = 64  # in a wider subnet, the /64 around the node's address is used
_HOST_PREFIX: Final = 128


class NotReady(msgspec.Struct, frozen=True):
    """A fact is missing or a state is not reached yet; no operator needs to act."""

    reason: str


class CannotAllocate(msgspec.Struct, frozen=True):
    """The configuration provides no block for this Node; an operator must change it."""

    reason: str


class NotManaged(msgspec.Struct, frozen=True):
    """The --cloud-config file assigns the Node to another controller: ipam writes nothing for it."""

    reason: str


class Pool(msgspec.Struct, frozen=True):
    """Blocks of one size inside one network."""

    name: str
    family: Family
    cidr: str
    mask: int


class EffectiveNetworks(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's own CIDRs for pods, the primary family first, and the mask of a Node's block."""

    cidrs: tuple[str, ...]
    services: tuple[str, ...] = ()  # networks that pods must not use
    mask_size_ipv4: int = 24
    mask_size_ipv6: int = 80


def select_pools(
    node: Node,
    facts: MachineFacts,
    networks: EffectiveNetworks,
    specs: Sequence[PoolSpec],
    allocator: Allocator,
) -> tuple[Pool, ...] | NotReady | CannotAllocate:
    """Return the pools in order: the Node gets one block per family, from that family's first free pool.

    `specs` replace the cluster's CIDRs, which then decide only the required families.
    """
    if allocator == "CloudAllocator" and not node.is_initialized:
        return NotReady("it is not initialized yet, and CloudAllocator serves initialized nodes only")
    why = validate_cluster_cidrs(networks.cidrs)
    if why and (networks.cidrs or not specs):  # a cluster without CIDRs may have configured pools
        return CannotAllocate(why)
    chosen = _choose_pools(
        facts, networks, specs or (PoolSpec(name=DEFAULT_POOL, index=0, cidrs=networks.cidrs),)
    )
    if isinstance(chosen, NotReady | CannotAllocate):
        return chosen
    if allocator == "CloudAllocator" and 6 in chosen:
        own = find_node_subnet_pool(node, facts)
        if isinstance(own, NotReady | CannotAllocate):
            return own
        if own is not None:
            chosen = {**chosen, 6: (Pool(NODE_SUBNET_POOL, 6, *own),)}
    return tuple(pool for pools in chosen.values() for pool in pools)


def validate_cluster_cidrs(cidrs: Sequence[str]) -> str:
    """Return why the cluster's CIDRs are invalid; "" for one CIDR, or one of each family."""
    try:
        families = [parse_network(cidr).family for cidr in cidrs]
    except ValueError as error:
        return f"the cluster's CIDRs are invalid: {error}"
    if not families:
        return "the cluster has no CIDR for pods"
    if len(set(families)) != len(families):
        return f"the cluster's CIDRs {', '.join(cidrs)} have several of one family"
    return ""


def _choose_pools(
    facts: MachineFacts, networks: EffectiveNetworks, specs: Sequence[PoolSpec]
) -> dict[Family, tuple[Pool, ...]] | NotReady | CannotAllocate:
    """Return by family, the primary one first, the pools of the first spec that selects the machine.

    Returns NotReady only if a missing fact matters: specs after the first match are not evaluated.
    """
    found: dict[Family, tuple[Pool, ...]] = {}
    try:
        for spec in specs:
            missing = {parse_network(cidr).family for cidr in spec.cidrs} - found.keys()
            selected = _spec_matches(spec, facts) if missing else False
            if isinstance(selected, NotReady):
                return selected
            if selected:
                found.update({family: build_pools(spec, family, networks) for family in missing})
    except ValueError as error:
        return CannotAllocate(str(error))
    return _order_by_family(found, networks)


def _order_by_family(
    found: Mapping[Family, tuple[Pool, ...]], networks: EffectiveNetworks
) -> dict[Family, tuple[Pool, ...]] | CannotAllocate:
    """Require every family of the cluster, because podCIDRs are immutable."""
    required = [parse_network(cidr).family for cidr in networks.cidrs]
    for family in required:
        if family not in found:
            return CannotAllocate(f"no configured pool that selects it has an IPv{family} network")
    if not found:
        return CannotAllocate("no configured pool selects it")
    return {family: found[family] for family in dict.fromkeys((*required, *_FAMILIES)) if family in found}


def build_pools(spec: PoolSpec, family: Family, networks: EffectiveNetworks) -> tuple[Pool, ...]:
    """Return the spec's pools of a family. Raises ValueError if a network contains no block."""
    mask = _select_mask(family, spec, networks)
    offered = []
    for network in map(parse_network, spec.cidrs):
        if network.family != family:
            continue
        why = explain_no_blocks(network, mask)
        if why:
            raise ValueError(f"pool {spec.name} cannot be used: {why}")
        offered.append(Pool(spec.name, family, str(network), mask))
    return tuple(offered)


def _select_mask(family: Family, spec: PoolSpec, networks: EffectiveNetworks) -> int:
    if family == 4:
        return networks.mask_size_ipv4 if spec.mask_size_ipv4 is None else spec.mask_size_ipv4
    return networks.mask_size_ipv6 if spec.mask_size_ipv6 is None else spec.mask_size_ipv6


def _spec_matches(spec: PoolSpec, facts: MachineFacts) -> bool | NotReady:
    if not spec.selector:
        return True
    why = why_metadata_incomplete(facts.platform)
    if why:
        return NotReady(f"pool {spec.name} selects by facts of the machine: {why}")
    fields = fact_values(facts)
    unasked = _list_missing_fields(spec, fields)
    if unasked:
        return NotReady(
            f"pool {spec.name} selects by {', '.join(unasked)}, which metadata has not queried yet"
        )
    return match_selector(spec.selector, fields.texts).is_match


def _list_missing_fields(spec: PoolSpec, fields: FactValues) -> list[str]:
    named = (find_field(requirement.key) for term in spec.selector for requirement in term.requirements)
    return sorted({field.name for field in named if field is not None and field.name in fields.unqueried})


def find_node_subnet_pool(
    node: Node, facts: MachineFacts
) -> tuple[str, int] | NotReady | CannotAllocate | None:
    """Return CIDR and node mask of its first subnet for pods; None if it has only single addresses.

    Returns NotReady while Talos reports addresses without the kubelet's own. A Node that got
    a block of the cluster's CIDR meanwhile would keep it permanently.
    """
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


def derive_subnet_pool(prefix: str) -> tuple[str, int] | None:
    """Return the pool's CIDR, which all nodes of a subnet share, and its mask; None for a single address.

    `prefix` is an address with its prefix length, such as 2001:db8::5/64. Raises ValueError with the reason
    if it is not IPv6 or contains fewer than 32 addresses.
    """
    try:
        address = IPv6Interface(prefix)
    except ValueError:
        raise ValueError(f"{prefix} is no IPv6 address with a prefix length") from None
    length = address.network.prefixlen
    if length == _HOST_PREFIX:
        return None
    if length < _MIN_PREFIX:
        address, length = IPv6Interface((address.ip, _MIN_PREFIX)), _MIN_PREFIX
    for longest, more in _ROWS:
        if length <= longest:
            return str(address.network), length + more
    raise ValueError(f"the subnet {address.network} is too small: /{_ROWS[-1][0]} is the smallest for pods")
