"""When a machine is looked at next, as delays from now. `jitter` is uniform in [0, 1) throughout."""

from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.bus.delivery import backoff_seconds, exponential_step
from libs.common.contract.machine import MachineFault

INCOMPLETE_FIRST_SECONDS: Final = 1.0
INCOMPLETE_CAP_SECONDS: Final = 30.0

Failures = Mapping[
    tuple[str, str], int
]  # consecutive failures since the last success, per fault (kind, step)


class PollIntervals(msgspec.Struct, frozen=True, kw_only=True):
    """How often, in seconds."""

    poll: float = 300.0  # a machine that nobody watches
    watched_poll: float = 1800.0  # a watched one: a half-open watch is silent
    republish: float = 300.0  # what has not changed is said again, so that it does not age out of the stream
    # Facts younger than this are not fetched again when their Node changes: what others and we write on it
    # says nothing of its machine, and of a thousand joining Nodes each changes within that time.
    freshness: float = 60.0
    debounce: float = 0.05  # changes come in flocks: a new address is three events
    min_gap: float = 0.5  # looks that a watch asks for; a flapping link must not become a storm


def count_failure(failures: Failures, fault: MachineFault) -> Failures:
    """One more failure. Alternating faults do not start each other's count anew."""
    key = (fault.kind, fault.step)
    return {**failures, key: failures.get(key, 0) + 1}


def count_attempts(failures: Failures, fault: MachineFault) -> int:
    """How often in a row this fault has been met, from 1 once it was."""
    return failures.get((fault.kind, fault.step), 0)


def delay_after_failure(failures: Failures, fault: MachineFault, jitter: float) -> float:
    """0.5 s doubling to 60 s, of which a random half is waited."""
    return backoff_seconds(max(1, count_attempts(failures, fault)), jitter)


def delay_after_success(intervals: PollIntervals, *, is_watched: bool, jitter: float) -> float:
    """Within the last fifth of the period: a fleet that started together drifts apart."""
    return (intervals.watched_poll if is_watched else intervals.poll) * (0.8 + 0.2 * jitter)


def delay_after_incomplete(incomplete_polls: int, jitter: float) -> float:
    """1 s doubling to 30 s while the cloud's metadata are awaited; `looks` counts incomplete ones from 1."""
    step = exponential_step(incomplete_polls, first=INCOMPLETE_FIRST_SECONDS, cap=INCOMPLETE_CAP_SECONDS)
    return step * (0.75 + 0.25 * jitter)


def delay_until_republish(intervals: PollIntervals, jitter: float) -> float:
    """When something unchanged is said again."""
    return intervals.republish * (0.8 + 0.2 * jitter)
