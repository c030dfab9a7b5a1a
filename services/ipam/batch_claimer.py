"""Claims blocks for a batch of allocation requests, and reports the claims to metrics and Events."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from services.ipam.allocation_plan import AllocationRequest, Assignment, Exclusions
from services.ipam.allocator import Allocator
from services.ipam.batcher import BatchResult, RequestResult
from services.ipam.node_events import ADDRESSES_IGNORED, NodeEvents
from services.ipam.node_index import NodeIndex
from services.ipam.pool_metrics import PoolMetrics


@dataclass(eq=False)
class BatchClaimer:
    """Knows which blocks this replica has claimed and not yet returned as a result."""

    allocator: Allocator
    _: KW_ONLY
    get_exclusions: Callable[[], Exclusions]  # raises TemporaryError while ipam may not claim
    node_index: NodeIndex
    node_events: NodeEvents
    pool_metrics: PoolMetrics

    def __post_init__(self) -> None:
        self._unassigned_blocks: set[str] = set()  # claimed by an attempt that yielded to another replica

    async def claim(self, requests: Sequence[AllocationRequest], never_yield: bool) -> BatchResult:
        """Claim for all requests; no results if the claim yielded to another replica."""
        claimed = await self.allocator.claim(requests, self.get_exclusions, never_yield=never_yield)
        self.pool_metrics.record_claimed(claimed)
        for name, ignored in claimed.ignored_addresses.items():
            if (node := self.node_index.get(name)) is not None:
                self.node_events.record(name, node.uid, ADDRESSES_IGNORED, ignored)
        # A claim that yielded returned no results. Its blocks count as new for the next result.
        new = self._unassigned_blocks | {block for block, _ in claimed.new_blocks}
        self._unassigned_blocks = set() if claimed.results else new
        results = {
            uid: RequestResult(
                result, not isinstance(result, Assignment) or not new.isdisjoint(result.pod_cidrs)
            )
            for uid, result in claimed.results.items()
        }
        return BatchResult(results, claimed.is_contended)
