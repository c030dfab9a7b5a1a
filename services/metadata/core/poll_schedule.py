"""Computes the delay until the next poll or publish, in seconds."""

from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.bus.delivery import backoff_seconds, exponential_step
from libs.common.contract.machine import MachineFault

INCOMPLETE_FIRST_SECONDS: Final = 1.0
INCOMPLETE_CAP_SECONDS: Final = 30.0

Failures = Mapping[tuple[str, str], int]  # failures since the last success, per fault (kind, step)


class PollIntervals(msgspec.Struct, frozen=True, kw_only=True):
    """The intervals of polls and publishes, in seconds."""

    poll: float = 300.0  # for a machine without a watch
    watched_poll: float = 1800.0  # for a watched machine: a watch on a half-open connection is silent
    republish: float = 300.0  # for unchanged messages, so that they do not expire from the stream
    # A changed Node causes no poll if its facts are younger than this. Most writes to a Node say nothing
    # about its machine, and each of a thousand joining Nodes changes within this time.
    freshness: float = 60.0
    debounce: float = 0.05  # changes come in bursts: a new address is three events
    min_gap: float = 0.5  # between polls that a watch causes: a flapping link must not cause a storm

    @property
    def inventory(self) -> float:
        """The age at which a kept inventory is polled again, as often as a watched machine."""
        return self.watched_poll * 0.8


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a change of state, and the delays that follow it."""

    now: float  # monotonic
    jitter: float  # uniform in [0, 1)
    intervals: PollIntervals

    def after_success(self, *, is_watched: bool, is_first: bool) -> float:
        """Return 80 to 100 % of the interval; after the first success 40 to 100 %.

        A start polls all machines within seconds. The wider range distributes their next polls.
        """
        interval = self.intervals.watched_poll if is_watched else self.intervals.poll
        least = 0.4 if is_first else 0.8
        return interval * (least + (1.0 - least) * self.jitter)

    def after_failure(self, failures: Failures, fault: MachineFault) -> float:
        """Return 0.5 s, doubled with each failure up to 60 s, reduced by jitter to 50 to 100 %."""
        return backoff_seconds(max(1, count_attempts(failures, fault)), self.jitter)

    def after_incomplete(self, incomplete_polls: int) -> float:
        """Return 1 s, doubled with each incomplete poll up to 30 s, with jitter. The count starts at 1."""
        step = exponential_step(incomplete_polls, first=INCOMPLETE_FIRST_SECONDS, cap=INCOMPLETE_CAP_SECONDS)
        return step * (0.75 + 0.25 * self.jitter)

    def until_republish(self) -> float:
        """Return the delay until an unchanged message is published again."""
        return self.intervals.republish * (0.8 + 0.2 * self.jitter)


def count_failure(failures: Failures, fault: MachineFault) -> Failures:
    """Return the counts with one more failure. Alternating faults do not reset each other's count."""
    key = (fault.kind, fault.step)
    return {**failures, key: failures.get(key, 0) + 1}


def count_attempts(failures: Failures, fault: MachineFault) -> int:
    """Return how often this fault occurred since the last success."""
    return failures.get((fault.kind, fault.step), 0)
