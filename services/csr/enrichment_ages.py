"""How long ago the stream took each enriched request, by the bus's clock and our own monotonic one.

No wall clock of ours takes part. Where the bus's clock went back, an age is unknown, never small.
"""

from typing import Final, NamedTuple

from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrEnriched

_CLOCK_SKEW_SECONDS: Final = 1.0  # by so little the clocks of several bus servers may differ


class _Receipt(NamedTuple):
    sequence: int
    published_at: float  # when the stream took it, by the bus's clock
    received_at: float  # when we received it, by ours
    is_live: bool  # else it is from before we followed


class EnrichmentAges:
    """Kept from every message of the flow. `at` is monotonic time in seconds throughout.

    The bus's present time is the stamp of its newest message and the seconds since that came. What came
    live is at least as old as the time that we have known it.
    """

    def __init__(self) -> None:
        self._requests: dict[str, _Receipt] = {}  # by subject
        self._newest: _Receipt | None = None
        self._clock_reset_sequence = (
            0  # sequence: what is not behind it was stamped before the clock went back
        )

    def apply(self, message: Message, *, now: float, is_live: bool) -> None:
        """The stream holds this message."""
        heard = _Receipt(message.sequence, message.published_at.timestamp(), now, is_live)
        newest = self._newest
        if newest is None or heard.sequence > newest.sequence:
            if newest is not None and heard.published_at < newest.published_at - _CLOCK_SKEW_SECONDS:
                self._clock_reset_sequence = newest.sequence
            self._newest = heard
        if not isinstance(message.event, CsrEnriched):
            self._requests.pop(message.subject, None)
            return
        known = self._requests.get(message.subject)
        if known is None or (known.sequence, known.published_at) != (heard.sequence, heard.published_at):
            self._requests[message.subject] = heard

    def handle_expired(self, subject: str) -> None:
        """The stream holds that subject no more."""
        self._requests.pop(subject, None)

    def clear(self) -> None:
        """Another stream: everything known is void."""
        self._requests.clear()
        self._newest = None
        self._clock_reset_sequence = 0

    def age_seconds(self, message: Message, now: float) -> float | None:
        """The age of an enriched request; None if nobody can know it."""
        heard, newest = self._requests.get(message.subject), self._newest
        if heard is None or newest is None or heard.sequence != message.sequence:
            return None
        known_for = now - heard.received_at
        by_stamps = newest.published_at + (now - newest.received_at) - heard.published_at
        if heard.sequence > self._clock_reset_sequence and by_stamps >= -_CLOCK_SKEW_SECONDS:
            return max(known_for, by_stamps)
        return known_for if heard.is_live else None
