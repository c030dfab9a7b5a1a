"""How many decisions a node's requests may cost: a noisy kubelet slows down itself and nobody else."""

from typing import Final

BURST: Final = 20  # decisions written in a row
REFILL_SECONDS: Final = 60.0  # one more each
_MOST_NODES: Final = 50_000


class Budget:
    """By node name: when its budget would be whole again. A node that is not named has a whole one."""

    def __init__(self) -> None:
        self._whole_at: dict[str, float] = {}

    def seconds_until(self, node: str, at: float) -> float:
        """How long until one more may be written for that node; `at` is monotonic, in seconds."""
        missing = self._whole_at.get(node, at) - at
        return max(0.0, missing - (BURST - 1) * REFILL_SECONDS)

    def spend(self, node: str, at: float) -> None:
        """One has been written."""
        whole_at = max(at, self._whole_at.pop(node, at)) + REFILL_SECONDS
        self._whole_at[node] = whole_at
        if len(self._whole_at) > _MOST_NODES:
            self._forget_whole(at)

    def _forget_whole(self, at: float) -> None:
        self._whole_at = {node: whole for node, whole in self._whole_at.items() if whole > at}
        while len(self._whole_at) > _MOST_NODES:
            del self._whole_at[next(iter(self._whole_at))]
