"""Metrics of pools, under the names of the reference controller."""

from collections.abc import Iterable, Mapping, Sequence

from libs.common.observability import metrics
from services.ipam.allocator import ClaimResult
from services.ipam.network_set import contains, parse_cached_network
from services.ipam.pages import Claim, Page
from services.ipam.pool_selection import NODE_SUBNET_POOL, Pool
from services.ipam.pool_usage import measure_usage


class PoolMetrics:
    """Counts claims and releases per pool, and the used share of each pool.

    All pools from the Nodes' own subnets share one series without a capacity: there may be one per Node.
    """

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def add_pools(self, pools: Iterable[Pool]) -> None:
        """Add pools from which a Node may get a block."""
        self._pools.update({pool.cidr: pool for pool in pools if pool.name != NODE_SUBNET_POOL})

    def record_claimed(self, result: ClaimResult) -> None:
        """Count the new blocks of a claim."""
        for block, pool in result.new_blocks:
            metrics.IPAM_ALLOCATIONS.labels(_series_name(pool)).inc()
            metrics.IPAM_TRIES.labels(_series_name(pool)).observe(result.attempts[block])

    def record_freed(self, claims: Sequence[Claim]) -> None:
        """Count claims that ended."""
        for claim in claims:
            block = parse_cached_network(claim.block)
            of = (cidr for cidr in self._pools if contains(parse_cached_network(cidr), block))
            metrics.IPAM_RELEASES.labels(next(of, NODE_SUBNET_POOL)).inc()

    def refresh(self, pages: Mapping[str, Page]) -> None:
        """Set the gauges by the current pages."""
        found = measure_usage(self._pools.values(), pages.values())
        for cidr, use in found.pools.items():
            metrics.IPAM_MAX.labels(cidr).set(use.capacity)
            metrics.IPAM_USAGE.labels(cidr).set(use.used / use.capacity)
        metrics.IPAM_QUARANTINED.set(found.quarantined)

    def reset(self) -> None:
        """Remove the gauges of all pools after a configuration change; pools still in use come back."""
        for cidr in self._pools:
            metrics.IPAM_MAX.remove(cidr)
            metrics.IPAM_USAGE.remove(cidr)
        self._pools.clear()


def _series_name(pool: Pool) -> str:
    return NODE_SUBNET_POOL if pool.name == NODE_SUBNET_POOL else pool.cidr
