"""What the metrics say of pools, under the reference's names."""

from collections.abc import Iterable, Mapping, Sequence

from libs.common.observability import metrics
from services.ipam.allocator import ClaimResult
from services.ipam.network_set import contains, parse_cached_network
from services.ipam.pages import Claim, Page
from services.ipam.pool_selection import NODE_SUBNET_POOL, Pool
from services.ipam.pool_usage import measure_usage


class PoolMetrics:
    """The pools that blocks have been claimed of, and how much of them is taken.

    Of the Nodes' own subnets there may be one per Node: they are one series, and have no end.
    """

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def add_pools(self, pools: Iterable[Pool]) -> None:
        """Somebody may get a block of these."""
        self._pools.update({pool.cidr: pool for pool in pools if pool.name != NODE_SUBNET_POOL})

    def record_claimed(self, result: ClaimResult) -> None:
        """These blocks were claimed just now."""
        for block, pool in result.new_blocks:
            metrics.IPAM_ALLOCATIONS.labels(_series_name(pool)).inc()
            metrics.IPAM_TRIES.labels(_series_name(pool)).observe(result.attempts[block])

    def record_freed(self, claims: Sequence[Claim]) -> None:
        """These claims have ended."""
        for claim in claims:
            block = parse_cached_network(claim.block)
            of = (cidr for cidr in self._pools if contains(parse_cached_network(cidr), block))
            metrics.IPAM_RELEASES.labels(next(of, NODE_SUBNET_POOL)).inc()

    def refresh(self, pages: Mapping[str, Page]) -> None:
        """The pages as they are now."""
        found = measure_usage(self._pools.values(), pages.values())
        for cidr, use in found.pools.items():
            metrics.IPAM_MAX.labels(cidr).set(use.capacity)
            metrics.IPAM_USAGE.labels(cidr).set(use.used / use.capacity)
        metrics.IPAM_QUARANTINED.set(found.quarantined)

    def reset(self) -> None:
        """The configuration has changed: what is not offered any more is not told of."""
        for cidr in self._pools:
            metrics.IPAM_MAX.remove(cidr)
            metrics.IPAM_USAGE.remove(cidr)
        self._pools.clear()


def _series_name(pool: Pool) -> str:
    return NODE_SUBNET_POOL if pool.name == NODE_SUBNET_POOL else pool.cidr
