"""What the metrics say of pools, under the reference's names."""

from collections.abc import Iterable, Mapping, Sequence

from libs.common import metrics
from services.ipam.allocator import Claimed
from services.ipam.pages import Claim, Page
from services.ipam.pools import OWN_SUBNET, Pool
from services.ipam.spans import contains, network_of
from services.ipam.use import used


class Measured:
    """The pools that blocks have been claimed of, and how much of them is taken.

    Of the Nodes' own subnets there may be one per Node: they are one series, and have no end.
    """

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def offered(self, pools: Iterable[Pool]) -> None:
        """Somebody may get a block of these."""
        self._pools.update({pool.cidr: pool for pool in pools if pool.name != OWN_SUBNET})

    def claimed(self, claimed: Claimed) -> None:
        """These blocks were claimed just now."""
        for block, pool in claimed.new:
            metrics.IPAM_ALLOCATIONS.labels(_series_of(pool)).inc()
            metrics.IPAM_TRIES.labels(_series_of(pool)).observe(claimed.tries[block])

    def freed(self, claims: Sequence[Claim]) -> None:
        """These claims have ended."""
        for claim in claims:
            block = network_of(claim.block)
            of = (cidr for cidr in self._pools if contains(network_of(cidr), block))
            metrics.IPAM_RELEASES.labels(next(of, OWN_SUBNET)).inc()

    def look(self, pages: Mapping[str, Page]) -> None:
        """The pages as they are now."""
        found = used(self._pools.values(), pages.values())
        for cidr, use in found.pools.items():
            metrics.IPAM_MAX.labels(cidr).set(use.capacity)
            metrics.IPAM_USAGE.labels(cidr).set(use.used / use.capacity)
        metrics.IPAM_QUARANTINED.set(found.quarantined)

    def other_pools(self) -> None:
        """The configuration has changed: what is not offered any more is not told of."""
        for cidr in self._pools:
            metrics.IPAM_MAX.remove(cidr)
            metrics.IPAM_USAGE.remove(cidr)
        self._pools.clear()


def _series_of(pool: Pool) -> str:
    return OWN_SUBNET if pool.name == OWN_SUBNET else pool.cidr
