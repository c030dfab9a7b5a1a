"""The last hour of counts and latencies, in steps of ten seconds. Pure."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import msgspec

STEP_SECONDS: Final = 10
_RATE_SECONDS: Final = 5.0
_MAX_STEPS: Final = 3600 // STEP_SECONDS


class HistoryStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ten seconds: messages per second by kind, joins and their latency, and what was wrong."""

    at: float  # end of the step
    observed: float = 0.0
    enriched: float = 0.0
    decided: float = 0.0
    joined: int = 0
    p50: float = 0.0  # seconds from the registration of a Node to its initialization
    p99: float = 0.0
    stuck: int = 0
    unreachable: int = 0
    dead: int = 0


class History:
    """Counts live messages: their rate over the last seconds, and the finished steps of the last hour."""

    def __init__(self, now: float) -> None:
        self._steps: deque[HistoryStep] = deque(maxlen=_MAX_STEPS)
        self._totals: Counter[str] = Counter()
        self._before: Counter[str] = Counter()  # the totals at the begin of the current step
        self._samples = deque([(now, self._totals.copy())])  # the totals of the last seconds
        self._latencies: list[float] = []
        self._end = now + STEP_SECONDS

    def count(self, kind: str) -> None:
        """Count one message of this kind."""
        self._totals[kind] += 1

    def add_latency(self, seconds: float) -> None:
        """Add the latency of one Node."""
        self._totals["joined"] += 1
        self._latencies.append(max(0.0, seconds))

    def advance(self, now: float, *, stuck: int, unreachable: int, dead: int) -> None:
        """Add a sample for the rates; finish the current step, with these gauges, once its time is over."""
        self._samples.append((now, self._totals.copy()))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_SECONDS:
            self._samples.popleft()
        if now < self._end:
            return
        counts, latencies = self._totals - self._before, sorted(self._latencies)
        self._steps.append(
            HistoryStep(
                at=now,
                observed=counts["observed"] / STEP_SECONDS,
                enriched=counts["enriched"] / STEP_SECONDS,
                decided=counts["decided"] / STEP_SECONDS,
                joined=counts["joined"],
                p50=_find_percentile(latencies, 0.5),
                p99=_find_percentile(latencies, 0.99),
                stuck=stuck,
                unreachable=unreachable,
                dead=dead,
            )
        )
        self._before, self._latencies = self._totals.copy(), []
        late = now - self._end
        self._end += STEP_SECONDS if late < STEP_SECONDS else late + STEP_SECONDS

    def measure_rates(self) -> dict[str, float]:
        """Return messages per second over the last seconds, by kind; empty before the first sample."""
        (begin, before), (end, after) = self._samples[0], self._samples[-1]
        return {kind: count / max(1.0, end - begin) for kind, count in (after - before).items()}

    def list_after(self, at: float) -> Iterable[HistoryStep]:
        """Return the finished steps that ended after that time."""
        return [step for step in self._steps if step.at > at]


def _find_percentile(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3) if ordered else 0.0
