"""Measures how much of each pool is in use, by the current pages."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from services.ipam.cidr_set import CidrSet
from services.ipam.network_set import parse_cached_network
from services.ipam.networks import Network
from services.ipam.pages import Page
from services.ipam.pool_selection import Pool


class PoolUsage(msgspec.Struct, frozen=True):
    """The usage of one pool."""

    used: int  # blocks of its mask that overlap a claim, including claims in quarantine
    capacity: int


class UsageReport(msgspec.Struct, frozen=True):
    """The usage of all pools."""

    pools: Mapping[str, PoolUsage]  # by the pool's network
    quarantined: int  # claims of deleted Nodes


def measure_usage(pools: Iterable[Pool], pages: Iterable[Page]) -> UsageReport:
    """Measure pools that do not overlap; pools with the same network count as one."""
    sets = {pool.cidr: CidrSet(pool.cidr, pool.mask) for pool in pools}
    networks = sorted(
        (parse_cached_network(cidr) for cidr in sets), key=lambda network: (network.family, network.first)
    )
    firsts = [(network.family, network.first) for network in networks]
    quarantined = 0
    for page in pages:
        for block, claim in page.claims.items():
            quarantined += claim.gone_since is not None
            for network in _overlapping_networks(parse_cached_network(block), networks, firsts):
                sets[str(network)].occupy(block)
    return UsageReport(
        {cidr: PoolUsage(blocks.used_count, blocks.capacity) for cidr, blocks in sets.items()}, quarantined
    )


def _overlapping_networks(
    block: Network, networks: list[Network], firsts: Sequence[tuple[int, int]]
) -> Iterable[Network]:
    """Yield the networks that overlap the block; `networks` are disjoint and sorted."""
    at = max(0, bisect_right(firsts, (block.family, block.first)) - 1)
    for network in networks[at:]:
        if (network.family, network.first) >= (block.family, block.end):
            return
        if network.family == block.family and block.first < network.end:
            yield network
