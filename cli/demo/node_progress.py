"""How far each joining node has come, and how long each hop took. Pure: times come in with what happened."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import msgspec

from cli.demo.log_line import LogLine
from libs.common.contract.node import Node

MILESTONES: Final = ("observed", "answered", "ready")  # in the order in which a node passes them


class NodeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One node's way; None where it has not come yet."""

    name: str
    platform: str
    joined_at: datetime  # the kubelet began to register
    is_registered: bool = False  # Kubernetes shows the node
    observed_at: datetime | None = None  # the watcher has published it
    answered_at: datetime | None = None  # its machine has told metadata what it is
    ready_at: datetime | None = None  # Kubernetes shows the node without the uninitialized taint
    trouble: str = ""  # the last reason why it does not move on

    @property
    def state(self) -> str:
        """A word for the hop at which the node is."""
        if self.ready_at:
            return "ready"
        if self.trouble:
            return "blocked"
        return "answered" if self.answered_at else "observed" if self.observed_at else "joining"

    @property
    def why_not_ready(self) -> str:
        """In words, for a node that is not ready when patience is over."""
        if self.trouble:
            return self.trouble
        return (
            "patience was over on its way"
            if self.is_registered
            else ("patience was over before it had joined")
        )

    def seconds_until(self, milestone: str) -> float | None:
        """Time from joining until that hop, None while it has not been passed."""
        passed = getattr(self, f"{milestone}_at")
        return None if passed is None else max(0.0, (passed - self.joined_at).total_seconds())


class DemoProgress:
    """All nodes of a run, in the order in which they joined."""

    def __init__(self) -> None:
        self._journeys: dict[str, NodeProgress] = {}

    def __iter__(self) -> Iterator[NodeProgress]:
        return iter(self._journeys.values())

    def __len__(self) -> int:
        return len(self._journeys)

    def add_node(self, name: str, platform: str, at: datetime) -> None:
        """A kubelet begins to register that node."""
        self._journeys[name] = NodeProgress(name=name, platform=platform, joined_at=at)

    def apply_log_line(self, line: LogLine) -> None:
        """A service has logged that: the first line of its kind for a node marks the hop."""
        if line.milestone:
            self._record_first(line.node, **{f"{line.milestone}_at": line.time})
        if line.trouble is not None:
            self._update(line.node, trouble=line.trouble)

    def apply_node(self, node: Node, at: datetime) -> None:
        """Kubernetes holds the node like this."""
        self._update(node.name, is_registered=True)
        if node.is_initialized:
            self._record_first(node.name, ready_at=at)

    def count_states(self) -> Counter[str]:
        """How many nodes are in which state."""
        return Counter(journey.state for journey in self._journeys.values())

    @property
    def ready_names(self) -> frozenset[str]:
        """Names of the nodes that are ready."""
        return frozenset(journey.name for journey in self._journeys.values() if journey.ready_at)

    @property
    def are_all_ready(self) -> bool:
        """Whether nothing is left to wait for."""
        return all(journey.ready_at for journey in self._journeys.values())

    def _record_first(self, name: str, **first: datetime) -> None:
        journey = self._journeys.get(name)
        if journey is not None:
            self._update(name, **{k: v for k, v in first.items() if getattr(journey, k) is None})

    def _update(self, name: str, **fields: datetime | str | bool) -> None:
        if name in self._journeys and fields:
            self._journeys[name] = msgspec.structs.replace(self._journeys[name], **fields)


def compute_percentile(values: list[float], percent: float) -> float:
    """Nearest rank: the smallest value that at least that share of all does not exceed. NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def compute_milestone_percentiles(journeys: Iterable[NodeProgress]) -> dict[str, dict[str, float]]:
    """Seconds from joining to each hop: hop -> p50, p90, p99, max over the nodes that have passed it."""
    passed = list(journeys)
    result = {}
    for hop in MILESTONES:
        times = [seconds for journey in passed if (seconds := journey.seconds_until(hop)) is not None]
        result[hop] = {f"p{p:g}": compute_percentile(times, p) for p in (50, 90, 99)} | {
            "max": compute_percentile(times, 100)
        }
    return result
