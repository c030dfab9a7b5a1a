"""The part of the state that Nodes and requests share, the steps that both can take, and when they are due.

All times are monotonic seconds.
"""

import math
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

import msgspec

from libs.common.bus.delivery import backoff_seconds, exponential_step
from libs.common.bus.protocol import Message
from libs.common.contract.events import (
    CsrGone,
    CsrObserved,
    EnrichedCsr,
    EnrichedCsrGone,
    EnrichedNode,
    EnrichedNodeGone,
    NodeGone,
    NodeObserved,
)
from libs.common.contract.machine import MachineFault
from services.metadata.core.event_equivalence import is_equivalent

NEVER: Final = math.inf
LONG_AGO: Final = -math.inf
_MAX_LINKS: Final = 8  # to observations that got no answer before the next one arrived
INCOMPLETE_FIRST_SECONDS: Final = 1.0
INCOMPLETE_CAP_SECONDS: Final = 30.0

ObservedT = TypeVar("ObservedT", bound=NodeObserved | NodeGone | CsrObserved | CsrGone)
EnrichedT = TypeVar("EnrichedT", bound=EnrichedNode | EnrichedCsr)

Headers = Mapping[str, str]  # the trace context of a message
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


class Publish(msgspec.Struct, Generic[EnrichedT], frozen=True):
    """Publish this event."""

    event: EnrichedT


class Wait(msgspec.Struct, frozen=True):
    """Wait until then (monotonic seconds), or until the state changes."""

    until: float


class ForgetObject(msgspec.Struct, frozen=True):
    """Forget the object: it is gone and published, or it needs no more messages."""


class Observation(msgspec.Struct, Generic[ObservedT], frozen=True, kw_only=True):
    """The newest observation of one object, which the watcher published."""

    event: ObservedT
    sequence: int  # its sequence in the stream
    trace_headers: Headers = {}
    unanswered: tuple[Headers, ...] = ()  # of the observations before it that got no answer
    is_answered: bool = False  # a message was published since it arrived
    is_stale: bool = False  # it is from a lost stream; the present one does not have the object yet

    @property
    def uid(self) -> str:
        """The uid of the observed object."""
        event = self.event
        if isinstance(event, NodeGone | CsrGone):
            return event.uid
        return event.node.uid if isinstance(event, NodeObserved) else event.request.uid

    def find_trace(self) -> tuple[Headers | None, tuple[Headers, ...]]:
        """Return the parent headers of a message about it, and those to link to.

        Once it is answered, a further message only links to it.
        """
        if self.is_answered:
            return None, (self.trace_headers,) if self.trace_headers else ()
        return self.trace_headers, tuple(each for each in self.unanswered if each != self.trace_headers)

    def is_replay(self, message: Message) -> bool:
        """Return whether the message is not newer, as in a replay after a lost connection."""
        return message.sequence <= self.sequence and not self.is_stale

    def is_current(self, event: EnrichedNode | EnrichedCsr) -> bool:
        """Return whether this event was published to the present stream, which has the object."""
        return not self.is_stale and self.event.stream_id == event.stream_id

    def stale(self) -> "Observation[ObservedT]":
        """Return it as an observation of a lost stream, without its sequence there."""
        return msgspec.structs.replace(self, is_stale=True, sequence=0)

    def answered(self, event: EnrichedNode | EnrichedCsr) -> "Observation[ObservedT]":
        """Return it after this event was published, which answers it unless it is about an older one."""
        return msgspec.structs.replace(self, is_answered=event.observed_sequence >= self.sequence)


def make_observation(
    message: Message, event: ObservedT, before: Observation[ObservedT] | None = None
) -> Observation[ObservedT]:
    """Return the observation that arrived with this message, after the one before it."""
    unanswered: tuple[Headers, ...] = ()
    if before is not None and not before.is_answered and before.trace_headers:
        unanswered = tuple(each for each in before.unanswered if each != before.trace_headers)
        unanswered = (*unanswered, before.trace_headers)[-_MAX_LINKS:]
    return Observation(
        event=event, sequence=message.sequence, trace_headers=message.headers, unanswered=unanswered
    )


class Publication(msgspec.Struct, Generic[EnrichedT], frozen=True, kw_only=True):
    """The last published message about one object, and when the next one may be published."""

    event: EnrichedT | None = None  # from this replica or another one
    # A publish failed since: perhaps the stream has that event, and only its acknowledgement was lost.
    is_uncertain: bool = False
    republish_at: float = NEVER  # when it is published again, unchanged
    failures: int = 0  # in a row
    retry_at: float = LONG_AGO  # the back-off after failures ends then

    def is_due(self, event: EnrichedT, now: float) -> bool:
        """Return whether to publish this event: it may be news to the stream, or the last one expires."""
        if self.is_uncertain or not self.has_equivalent(event):
            return True
        return now >= self.republish_at and not isinstance(event, EnrichedNodeGone | EnrichedCsrGone)

    def has_equivalent(self, event: EnrichedT) -> bool:
        """Return whether the last message means the same as this event."""
        return self.event is not None and is_equivalent(self.event, event)

    def published(self, event: EnrichedT, timing: Timing) -> "Publication[EnrichedT]":
        """Return the state after a publish: the stream has this event or a newer one."""
        return Publication(event=event, republish_at=timing.now + timing.until_republish())

    def restarted(self, timing: Timing) -> "Publication[EnrichedT]":
        """Return the state for another object of the same name, which has another uid."""
        republish_at = timing.now + timing.intervals.republish
        return Publication(event=self.event, is_uncertain=self.is_uncertain, republish_at=republish_at)

    def failed(self, timing: Timing) -> "Publication[EnrichedT]":
        """Count a failed publish and set the back-off.

        Whatever is known at the end of the back-off is published, even if it was published before.
        """
        failures = self.failures + 1
        retry_at = timing.now + backoff_seconds(failures, timing.jitter)
        return msgspec.structs.replace(self, is_uncertain=True, failures=failures, retry_at=retry_at)

    def reconnected(self, timing: Timing) -> "Publication[EnrichedT]":
        """End the back-off when the bus is connected again. The jitter spreads the retries over a second."""
        return msgspec.structs.replace(self, failures=0, retry_at=timing.now + timing.jitter)

    def without_backoff(self) -> "Publication[EnrichedT]":
        """Return it without failures, so that the next message is published at once."""
        return msgspec.structs.replace(self, failures=0, retry_at=LONG_AGO)

    def lost(self) -> "Publication[EnrichedT]":
        """Forget the message, which the stream has no more."""
        return msgspec.structs.replace(self, event=None, is_uncertain=False, republish_at=NEVER)
