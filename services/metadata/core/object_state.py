"""The part of the state that Nodes and requests share, and the steps that both can take.

All times are monotonic seconds.
"""

import math
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

import msgspec

from libs.common.bus.delivery import backoff_seconds
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
from services.metadata.core.event_equivalence import is_equivalent
from services.metadata.core.poll_schedule import Timing

NEVER: Final = math.inf
LONG_AGO: Final = -math.inf

ObservedT = TypeVar("ObservedT", bound=NodeObserved | NodeGone | CsrObserved | CsrGone)
EnrichedT = TypeVar("EnrichedT", bound=EnrichedNode | EnrichedCsr)


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
    trace_headers: Mapping[str, str] = {}  # its trace context
    is_answered: bool = False  # a message was published since it arrived
    is_stale: bool = False  # it is from a lost stream; the present one does not have the object yet

    @property
    def uid(self) -> str:
        """The uid of the observed object."""
        event = self.event
        if isinstance(event, NodeGone | CsrGone):
            return event.uid
        return event.node.uid if isinstance(event, NodeObserved) else event.request.uid

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


def make_observation(message: Message, event: ObservedT) -> Observation[ObservedT]:
    """Return the observation that arrived with this message."""
    return Observation(event=event, sequence=message.sequence, trace_headers=message.headers)


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
