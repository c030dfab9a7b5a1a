"""From which pools a Node gets its pod CIDRs, in order; or why from none."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from libs.common.cloud_config.fields import RuleFields, field_of, rule_fields
from libs.common.cloud_config.rule import Pool as PoolSpec
from libs.common.cloud_config.selectors import matches
from libs.common.machine import MachineFacts, metadata_incomplete
from libs.common.node import Node
from services.ipam.networks import Family, read_network, why_no_blocks
from services.ipam.outcomes import Unserved, Wait
from services.ipam.own_subnet import own_pool

Allocator = Literal["RangeAllocator", "CloudAllocator"]

DEFAULT_POOL: Final = "default"  # of the cluster's own CIDRs, where the configuration has no pools
OWN_SUBNET: Final = "node-subnet"  # of CloudAllocator's pools
_FAMILIES: Final[tuple[Family, ...]] = get_args(Family)


class Pool(msgspec.Struct, frozen=True):
    """Blocks of one size inside one network."""

    name: str
    family: Family
    cidr: str
    mask: int


class PodNetworks(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's own CIDRs, the primary family first, and how large a node's block is."""

    cidrs: tuple[str, ...]
    mask_size_ipv4: int = 24
    mask_size_ipv6: int = 80


def pools_for(
    node: Node,
    facts: MachineFacts | None,
    networks: PodNetworks | None,
    specs: Sequence[PoolSpec],
    allocator: Allocator,
) -> tuple[Pool, ...] | Wait | Unserved:
    """The node gets one block of each family, from the first pool of that family with room; in this order.

    `facts` = None: Talos has told none, now or earlier. `networks` = None: the cluster's are not known yet.
    `specs` are used instead of the cluster's CIDRs, which then only say which families there must be.
    """
    if networks is None:
        return Wait("the cluster's networks are not known yet")
    if allocator == "CloudAllocator" and not node.initialized:
        return Wait("it is not initialized yet, and CloudAllocator serves initialized nodes only")
    why = cluster_cidrs_mistake(networks.cidrs)
    if why and (networks.cidrs or not specs):  # a cluster without any may well have pools
        return Unserved(why)
    chosen = _chosen(facts, networks, specs or (PoolSpec(name=DEFAULT_POOL, index=0, cidrs=networks.cidrs),))
    if isinstance(chosen, Wait | Unserved):
        return chosen
    if allocator == "CloudAllocator" and 6 in chosen:
        own = own_pool(node, facts)
        if isinstance(own, Wait | Unserved):
            return own
        if own is not None:
            chosen = {**chosen, 6: (Pool(OWN_SUBNET, 6, *own),)}
    return tuple(pool for pools in chosen.values() for pool in pools)


def cluster_cidrs_mistake(cidrs: Sequence[str]) -> str:
    """What is wrong with the cluster's CIDRs, in words; "" if they are one, or one of each family."""
    try:
        families = [read_network(cidr).family for cidr in cidrs]
    except ValueError as error:
        return f"the cluster's CIDRs cannot be used: {error}"
    if not families:
        return "the cluster has no CIDR for pods"
    if len(set(families)) != len(families):
        return f"the cluster's CIDRs {', '.join(cidrs)} are neither one nor one of each family"
    return ""


def _chosen(
    facts: MachineFacts | None, networks: PodNetworks, specs: Sequence[PoolSpec]
) -> dict[Family, tuple[Pool, ...]] | Wait | Unserved:
    """By family, the primary one first: what the first spec that selects the machine and has it offers.

    A Wait for facts only where they decide: a spec behind the one that serves is not looked at.
    """
    found: dict[Family, tuple[Pool, ...]] = {}
    try:
        for spec in specs:
            missing = {read_network(cidr).family for cidr in spec.cidrs} - found.keys()
            selected = _selects(spec, facts) if missing else False
            if isinstance(selected, Wait):
                return selected
            if selected:
                found.update({family: _offered(spec, family, networks) for family in missing})
    except ValueError as error:
        return Unserved(str(error))
    return _in_order(found, networks)


def _in_order(
    found: Mapping[Family, tuple[Pool, ...]], networks: PodNetworks
) -> dict[Family, tuple[Pool, ...]] | Unserved:
    """Never half of what the cluster has: podCIDRs cannot be changed afterwards."""
    wanted = [read_network(cidr).family for cidr in networks.cidrs]
    for family in wanted:
        if family not in found:
            return Unserved(f"no pool of the configuration that selects it has an IPv{family} network")
    if not found:
        return Unserved("no pool of the configuration selects it")
    return {family: found[family] for family in dict.fromkeys((*wanted, *_FAMILIES)) if family in found}


def _offered(spec: PoolSpec, family: Family, networks: PodNetworks) -> tuple[Pool, ...]:
    """Its networks of a family. ValueError in words if one of them can hold no block."""
    mask = _mask_of(family, spec, networks)
    offered = []
    for network in map(read_network, spec.cidrs):
        if network.family != family:
            continue
        why = why_no_blocks(network, mask)
        if why:
            raise ValueError(f"pool {spec.name} cannot be used: {why}")
        offered.append(Pool(spec.name, family, str(network), mask))
    return tuple(offered)


def _mask_of(family: Family, spec: PoolSpec, networks: PodNetworks) -> int:
    if family == 4:
        return networks.mask_size_ipv4 if spec.mask_size_ipv4 is None else spec.mask_size_ipv4
    return networks.mask_size_ipv6 if spec.mask_size_ipv6 is None else spec.mask_size_ipv6


def _selects(spec: PoolSpec, facts: MachineFacts | None) -> bool | Wait:
    if not spec.selector:
        return True
    if facts is None:
        return Wait(f"pool {spec.name} selects by facts of the machine, and Talos has told none yet")
    why = metadata_incomplete(facts.platform)
    if why:
        return Wait(f"pool {spec.name} selects by facts of the machine: {why}")
    fields = rule_fields(facts)
    unasked = _unasked(spec, fields)
    if unasked:
        return Wait(
            f"pool {spec.name} selects by {', '.join(unasked)}, which Talos has not been asked for yet"
        )
    return matches(spec.selector, fields.texts).matched


def _unasked(spec: PoolSpec, fields: RuleFields) -> list[str]:
    named = (field_of(requirement.key) for term in spec.selector for requirement in term.requirements)
    return sorted({field.name for field in named if field is not None and field.name in fields.unasked})
