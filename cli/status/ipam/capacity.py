"""The pools that ipam would have with the same flags and --cloud-config file. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from libs.common.cloud_config.model import Pool as PoolSpec
from services.ipam.core.effective_networks import NetworkFlags
from services.ipam.core.networks import (
    Family,
    Network,
    contains,
    explain_no_blocks,
    parse_cached_network,
    parse_network,
)
from services.ipam.core.pages import Page
from services.ipam.core.pools import DEFAULT_POOL, PodNetworks, Pool


def resolve_pools(flags: NetworkFlags, specs: Sequence[PoolSpec], pages: Iterable[Page]) -> tuple[Pool, ...]:
    """Return the pools of the file, or of the cluster CIDRs if the file has none; () if neither names any.

    Raises ValueError if a network or a mask is unusable. For a mask that neither flags nor file set, ipam
    reads the machine config. This function uses the mask of most claims instead.
    """
    specs = specs or (PoolSpec(name=DEFAULT_POOL, index=0, cidrs=flags.cluster_cidrs),)
    usual = _get_default_masks(flags, specs, pages)
    return tuple(pool for spec in specs for pool in _make_pools(spec, usual))


def _make_pools(spec: PoolSpec, usual: dict[Family, int]) -> Iterator[Pool]:
    for network in map(parse_network, spec.cidrs):
        mask = _get_own_mask(spec, network.family) or usual[network.family]
        why = explain_no_blocks(network, mask)
        if why:
            raise ValueError(f"pool {spec.name} cannot be used: {why}")
        yield Pool(spec.name, network.family, str(network), mask)


def _get_default_masks(
    said: NetworkFlags, specs: Sequence[PoolSpec], pages: Iterable[Page]
) -> dict[Family, int]:
    claimed = _count_claimed_masks(specs, pages)
    cidrs = said.cluster_cidrs or [cidr for spec in specs for cidr in spec.cidrs]
    families = {network.family for network in map(parse_network, cidrs)}
    of_one: dict[Family, int] = dict.fromkeys(families, said.mask_size) if len(families) == 1 else {}
    default = PodNetworks(cidrs=())
    return {
        4: said.mask_size_ipv4 or of_one.get(4) or claimed.get(4) or default.mask_size_ipv4,
        6: said.mask_size_ipv6 or of_one.get(6) or claimed.get(6) or default.mask_size_ipv6,
    }


def _count_claimed_masks(specs: Sequence[PoolSpec], pages: Iterable[Page]) -> dict[Family, int]:
    """Return the mask of most claims, per IP family, in networks without a mask of their own."""
    usual: list[Network] = []
    for spec in specs:
        usual += [n for n in map(parse_network, spec.cidrs) if not _get_own_mask(spec, n.family)]
    counts = Counter(
        (block.family, block.prefix)
        for page in pages
        for block in map(parse_cached_network, page.claims)
        if any(contains(network, block) for network in usual)
    )
    most: dict[Family, int] = {}
    for (family, prefix), _ in counts.most_common():
        most.setdefault(family, prefix)
    return most


def _get_own_mask(spec: PoolSpec, family: Family) -> int | None:
    return spec.mask_size_ipv4 if family == 4 else spec.mask_size_ipv6
