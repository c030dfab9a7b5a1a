"""How many decisions a node's requests may cost: a noisy kubelet slows down itself and nobody else."""

from typing import Final

BURST: Final = 20  # decisions written in a row
REFILL_SECONDS: Final = 60.0  # one more each
_MAX_NODES: Final = 50_000


class NodeRateLimiter:
    """By node name: when its budget would be whole again. A node that is not named has a whole one."""

    def __init__(self) -> None:
        self._full_at: dict[str, float] = {}

    def seconds_until_allowed(self, node: str, now: float) -> float:
        """How long until one more may be written for that node; `at` is monotonic, in seconds."""
        missing = self._full_at.get(node, now) - now
        return max(0.0, missing - (BURST - 1) * REFILL_SECONDS)

    def record_write(self, node: str, now: float) -> None:
        """One has been written."""
        whole_at = max(now, self._full_at.pop(node, now)) + REFILL_SECONDS
        self._full_at[node] = whole_at
        if len(self._full_at) > _MAX_NODES:
            self._evict_full(now)

    def _evict_full(self, now: float) -> None:
        self._full_at = {node: whole for node, whole in self._full_at.items() if whole > now}
        while len(self._full_at) > _MAX_NODES:
            del self._full_at[next(iter(self._full_at))]
