"""The age of each enriched request in the stream, by the clock of the bus and the local monotonic clock.

No local wall clock is involved. If the clock of the bus went back, an age is unknown, never too small.
"""

from typing import Final, NamedTuple

from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrEnriched

_CLOCK_SKEW_SECONDS: Final = 1.0  # the clocks of several bus servers may differ by this much


class _Receipt(NamedTuple):
    sequence: int
    published_at: float  # when the stream accepted it, by the clock of the bus
    received_at: float  # when csr received it, by the monotonic clock
    is_live: bool  # False: published before csr followed the stream


class EnrichmentAges:
    """Records the receipt of every message of the flow. `now` is monotonic time in seconds.

    The present time of the bus is the timestamp of its newest message plus the seconds since its receipt. A
    live message is at least as old as the time since its receipt.
    """

    def __init__(self) -> None:
        self._requests: dict[str, _Receipt] = {}  # by subject
        self._newest: _Receipt | None = None
        # Messages up to this sequence have timestamps from before the clock went back.
        self._clock_reset_sequence = 0

    def apply(self, message: Message, *, now: float, is_live: bool) -> None:
        """Record a message of the stream."""
        receipt = _Receipt(message.sequence, message.published_at.timestamp(), now, is_live)
        newest = self._newest
        if newest is None or receipt.sequence > newest.sequence:
            if newest is not None and receipt.published_at < newest.published_at - _CLOCK_SKEW_SECONDS:
                self._clock_reset_sequence = newest.sequence
            self._newest = receipt
        if not isinstance(message.event, CsrEnriched):
            self._requests.pop(message.subject, None)
            return
        known = self._requests.get(message.subject)
        if known is None or (known.sequence, known.published_at) != (receipt.sequence, receipt.published_at):
            self._requests[message.subject] = receipt

    def handle_expired(self, subject: str) -> None:
        """Drop a subject that the stream no longer contains."""
        self._requests.pop(subject, None)

    def clear(self) -> None:
        """Drop all receipts, after the stream was replaced."""
        self._requests.clear()
        self._newest = None
        self._clock_reset_sequence = 0

    def age_seconds(self, message: Message, now: float) -> float | None:
        """Return the age of an enriched request in seconds; None if it is unknown."""
        receipt, newest = self._requests.get(message.subject), self._newest
        if receipt is None or newest is None or receipt.sequence != message.sequence:
            return None
        known_for = now - receipt.received_at
        by_stamps = newest.published_at + (now - newest.received_at) - receipt.published_at
        if receipt.sequence > self._clock_reset_sequence and by_stamps >= -_CLOCK_SKEW_SECONDS:
            return max(known_for, by_stamps)
        return known_for if receipt.is_live else None
