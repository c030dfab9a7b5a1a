"""The progress of each joining node and the time to each milestone. Pure: times are arguments."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import msgspec

from cli.demo.log_line import LogLine
from libs.common.contract.node import Node

MILESTONES: Final = ("observed", "answered", "ready")  # in the order in which a node reaches them


class NodeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one node; None for a milestone that it has not reached."""

    name: str
    platform: str
    joined_at: datetime  # the kubelet started to register
    is_registered: bool = False  # the Node exists in Kubernetes
    observed_at: datetime | None = None  # the watcher published it
    answered_at: datetime | None = None  # its machine answered metadata
    ready_at: datetime | None = None  # the Node has no uninitialized taint
    trouble: str = ""  # the last reason why it is stuck
    is_excluded: bool = False  # the labeler leaves it to others: `ownership` excludes it

    @property
    def state(self) -> str:
        """Return the state: the last milestone, excluded or blocked."""
        if self.ready_at:
            return "ready"
        if self.is_excluded:
            return "excluded"
        if self.trouble:
            return "blocked"
        return "answered" if self.answered_at else "observed" if self.observed_at else "joining"

    @property
    def why_not_ready(self) -> str:
        """Return why the node is not ready at the timeout."""
        if self.trouble:
            return self.trouble
        return "timeout before it was ready" if self.is_registered else ("timeout before it joined")

    def seconds_until(self, milestone: str) -> float | None:
        """Return the seconds from joining to that milestone; None before it."""
        passed = getattr(self, f"{milestone}_at")
        return None if passed is None else max(0.0, (passed - self.joined_at).total_seconds())


class DemoProgress:
    """The progress of all nodes of a run, in the order in which they joined."""

    def __init__(self) -> None:
        self._journeys: dict[str, NodeProgress] = {}

    def __iter__(self) -> Iterator[NodeProgress]:
        return iter(self._journeys.values())

    def __len__(self) -> int:
        return len(self._journeys)

    def add_node(self, name: str, platform: str, at: datetime) -> None:
        """Record that a kubelet starts to register."""
        self._journeys[name] = NodeProgress(name=name, platform=platform, joined_at=at)

    def apply_log_line(self, line: LogLine) -> None:
        """Record a log line; the first line of its kind sets the milestone."""
        if line.milestone:
            self._record_first(line.node, **{f"{line.milestone}_at": line.time})
        if line.trouble is not None:
            self._update(line.node, trouble=line.trouble)
        if line.is_excluded is not None:
            self._update(line.node, is_excluded=line.is_excluded)

    def apply_node(self, node: Node, at: datetime) -> None:
        """Record the current state of a Node in Kubernetes."""
        self._update(node.name, is_registered=True)
        if node.is_initialized:
            self._record_first(node.name, ready_at=at)

    def count_states(self) -> Counter[str]:
        """Return the number of nodes per state."""
        return Counter(journey.state for journey in self._journeys.values())

    @property
    def ready_names(self) -> frozenset[str]:
        """Return the names of the ready nodes."""
        return frozenset(journey.name for journey in self._journeys.values() if journey.ready_at)

    @property
    def are_all_ready(self) -> bool:
        """Whether all nodes are ready, except those that `ownership` excludes."""
        return all(journey.state in ("ready", "excluded") for journey in self._journeys.values())

    def _record_first(self, name: str, **first: datetime) -> None:
        journey = self._journeys.get(name)
        if journey is not None:
            self._update(name, **{k: v for k, v in first.items() if getattr(journey, k) is None})

    def _update(self, name: str, **fields: datetime | str | bool) -> None:
        if name in self._journeys and fields:
            self._journeys[name] = msgspec.structs.replace(self._journeys[name], **fields)


def compute_percentile(values: list[float], percent: float) -> float:
    """Return the percentile by nearest rank, NaN for no values.

    It is the smallest value that is not exceeded by that share of all values.
    """
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def compute_milestone_percentiles(journeys: Iterable[NodeProgress]) -> dict[str, dict[str, float]]:
    """Return p50, p90, p99 and max of the seconds from joining, per milestone."""
    passed = list(journeys)
    result = {}
    for hop in MILESTONES:
        times = [seconds for journey in passed if (seconds := journey.seconds_until(hop)) is not None]
        result[hop] = {f"p{p:g}": compute_percentile(times, p) for p in (50, 90, 99)} | {
            "max": compute_percentile(times, 100)
        }
    return result
