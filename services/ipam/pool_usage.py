"""How much of each pool is taken, counted from the pages as they are."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from services.ipam.cidr_set import CidrSet
from services.ipam.network_set import parse_cached_network
from services.ipam.networks import Network
from services.ipam.pages import Page
from services.ipam.pool_selection import Pool


class PoolUsage(msgspec.Struct, frozen=True):
    """Of one pool."""

    used: int  # blocks of its mask that claims touch, resting ones included
    capacity: int


class UsageReport(msgspec.Struct, frozen=True):
    """Of all."""

    pools: Mapping[str, PoolUsage]  # by the pool's network
    quarantined: int  # claims of Nodes that are gone


def measure_usage(pools: Iterable[Pool], pages: Iterable[Page]) -> UsageReport:
    """`pools` do not overlap; two of one network are one."""
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
    """Of disjoint networks in order, those that share an address with the block."""
    at = max(0, bisect_right(firsts, (block.family, block.first)) - 1)
    for network in networks[at:]:
        if (network.family, network.first) >= (block.family, block.end):
            return
        if network.family == block.family and block.first < network.end:
            yield network
