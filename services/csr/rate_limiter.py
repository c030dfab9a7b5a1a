"""Limits the decisions per node: a noisy kubelet slows down only itself."""

from typing import Final

BURST: Final = 20  # decisions in a row
REFILL_SECONDS: Final = 60.0  # until one more decision
_MAX_NODES: Final = 50_000


class NodeRateLimiter:
    """Stores when each node's budget is full again. A node without an entry has a full budget."""

    def __init__(self) -> None:
        self._full_at: dict[str, float] = {}

    def seconds_until_allowed(self, node: str, now: float) -> float:
        """Return the seconds until csr may write again for that node; `now` is monotonic, in seconds."""
        missing = self._full_at.get(node, now) - now
        return max(0.0, missing - (BURST - 1) * REFILL_SECONDS)

    def record_write(self, node: str, now: float) -> None:
        """Record one write."""
        full_at = max(now, self._full_at.pop(node, now)) + REFILL_SECONDS
        self._full_at[node] = full_at
        if len(self._full_at) > _MAX_NODES:
            self._evict_full(now)

    def _evict_full(self, now: float) -> None:
        self._full_at = {node: full_at for node, full_at in self._full_at.items() if full_at > now}
        while len(self._full_at) > _MAX_NODES:
            del self._full_at[next(iter(self._full_at))]
