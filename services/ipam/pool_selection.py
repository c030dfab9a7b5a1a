"""From which pools a Node gets its pod CIDRs, in order; or why from none."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from libs.common.cloud_config.fact_fields import FactValues, fact_values, find_field
from libs.common.cloud_config.model import Pool as PoolSpec
from libs.common.cloud_config.selectors import match_selector
from libs.common.contract.machine import MachineFacts, why_metadata_incomplete
from libs.common.contract.node import Node
from services.ipam.networks import Family, explain_no_blocks, parse_network
from services.ipam.node_subnet import find_node_subnet_pool
from services.ipam.unallocated_reasons import CannotAllocate, NotReady

Allocator = Literal["RangeAllocator", "CloudAllocator"]

DEFAULT_POOL: Final = "default"  # of the cluster's own CIDRs, where the configuration has no pools
NODE_SUBNET_POOL: Final = "node-subnet"  # of CloudAllocator's pools
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


def select_pools(
    node: Node,
    facts: MachineFacts | None,
    networks: PodNetworks | None,
    specs: Sequence[PoolSpec],
    allocator: Allocator,
) -> tuple[Pool, ...] | NotReady | CannotAllocate:
    """The node gets one block of each family, from the first pool of that family with room; in this order.

    `facts` = None: Talos has told none, now or earlier. `networks` = None: the cluster's are not known yet.
    `specs` are used instead of the cluster's CIDRs, which then only say which families there must be.
    """
    if networks is None:
        return NotReady("the cluster's networks are not known yet")
    if allocator == "CloudAllocator" and not node.is_initialized:
        return NotReady("it is not initialized yet, and CloudAllocator serves initialized nodes only")
    why = validate_cluster_cidrs(networks.cidrs)
    if why and (networks.cidrs or not specs):  # a cluster without any may well have pools
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
    """What is wrong with the cluster's CIDRs, in words; "" if they are one, or one of each family."""
    try:
        families = [parse_network(cidr).family for cidr in cidrs]
    except ValueError as error:
        return f"the cluster's CIDRs cannot be used: {error}"
    if not families:
        return "the cluster has no CIDR for pods"
    if len(set(families)) != len(families):
        return f"the cluster's CIDRs {', '.join(cidrs)} are neither one nor one of each family"
    return ""


def _choose_pools(
    facts: MachineFacts | None, networks: PodNetworks, specs: Sequence[PoolSpec]
) -> dict[Family, tuple[Pool, ...]] | NotReady | CannotAllocate:
    """By family, the primary one first: what the first spec that selects the machine and has it offers.

    A Wait for facts only where they decide: a spec behind the one that serves is not looked at.
    """
    found: dict[Family, tuple[Pool, ...]] = {}
    try:
        for spec in specs:
            missing = {parse_network(cidr).family for cidr in spec.cidrs} - found.keys()
            selected = _spec_matches(spec, facts) if missing else False
            if isinstance(selected, NotReady):
                return selected
            if selected:
                found.update({family: _build_pools(spec, family, networks) for family in missing})
    except ValueError as error:
        return CannotAllocate(str(error))
    return _order_by_family(found, networks)


def _order_by_family(
    found: Mapping[Family, tuple[Pool, ...]], networks: PodNetworks
) -> dict[Family, tuple[Pool, ...]] | CannotAllocate:
    """Never half of what the cluster has: podCIDRs cannot be changed afterwards."""
    wanted = [parse_network(cidr).family for cidr in networks.cidrs]
    for family in wanted:
        if family not in found:
            return CannotAllocate(f"no pool of the configuration that selects it has an IPv{family} network")
    if not found:
        return CannotAllocate("no pool of the configuration selects it")
    return {family: found[family] for family in dict.fromkeys((*wanted, *_FAMILIES)) if family in found}


def _build_pools(spec: PoolSpec, family: Family, networks: PodNetworks) -> tuple[Pool, ...]:
    """Its networks of a family. ValueError in words if one of them can hold no block."""
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


def _select_mask(family: Family, spec: PoolSpec, networks: PodNetworks) -> int:
    if family == 4:
        return networks.mask_size_ipv4 if spec.mask_size_ipv4 is None else spec.mask_size_ipv4
    return networks.mask_size_ipv6 if spec.mask_size_ipv6 is None else spec.mask_size_ipv6


def _spec_matches(spec: PoolSpec, facts: MachineFacts | None) -> bool | NotReady:
    if not spec.selector:
        return True
    if facts is None:
        return NotReady(f"pool {spec.name} selects by facts of the machine, and Talos has told none yet")
    why = why_metadata_incomplete(facts.platform)
    if why:
        return NotReady(f"pool {spec.name} selects by facts of the machine: {why}")
    fields = fact_values(facts)
    unasked = _list_missing_fields(spec, fields)
    if unasked:
        return NotReady(
            f"pool {spec.name} selects by {', '.join(unasked)}, which Talos has not been asked for yet"
        )
    return match_selector(spec.selector, fields.texts).is_match


def _list_missing_fields(spec: PoolSpec, fields: FactValues) -> list[str]:
    named = (find_field(requirement.key) for term in spec.selector for requirement in term.requirements)
    return sorted({field.name for field in named if field is not None and field.name in fields.unqueried})
