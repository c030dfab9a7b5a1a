"""metadata's reports: whether all machines are known, and the age of the report on each request.

No local wall clock is involved in an age. If the clock of the bus went back, an age is unknown, never too
small.
"""

from typing import Final, NamedTuple

from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrEnriched
from libs.common.service.startup_gate import StartupGate
from services.csr.core.decision import Wait

_MAX_AGE_IN_INTERVALS: Final = 2  # one repetition may get lost
_CLOCK_SKEW_SECONDS: Final = 1.0  # the clocks of several bus servers may differ by this much
# One constant wait for all requests and reports: each change would publish and log every request again.
_REPORTS_MISSING: Final = Wait(
    reason="startup", message="not every machine is known yet: csr waits for metadata's first reports"
)


class _Receipt(NamedTuple):
    sequence: int
    published_at: float  # when the stream accepted it, by the clock of the bus
    received_at: float  # when csr received it, by the monotonic clock
    is_live: bool  # False: published before csr followed the stream


class MetadataReports:
    """Records the receipt of every message of the flow. `now` is monotonic time in seconds.

    The present time of the bus is the timestamp of its newest message plus the seconds since its receipt. A
    live message is at least as old as the time since its receipt.
    """

    def __init__(self, gate: StartupGate, *, republish_seconds: float, without_talos: bool) -> None:
        """`republish_seconds`: the interval at which metadata publishes unchanged enrichments.

        `without_talos`: whether metadata queries no machine; each enriched request updates it.
        """
        self._gate = gate
        self._max_age_seconds = _MAX_AGE_IN_INTERVALS * republish_seconds
        self.without_talos = without_talos
        self.clear()

    def clear(self) -> None:
        """Drop all receipts, after the stream was replaced."""
        self._requests: dict[str, _Receipt] = {}  # by subject
        self._newest: _Receipt | None = None
        # Messages up to this sequence have timestamps from before the clock went back.
        self._clock_reset_sequence = 0

    def apply(self, message: Message, *, now: float, is_live: bool) -> None:
        """Record that a message of the flow was received."""
        receipt = _Receipt(message.sequence, message.published_at.timestamp(), now, is_live)
        newest = self._newest
        if newest is None or receipt.sequence > newest.sequence:
            if newest is not None and receipt.published_at < newest.published_at - _CLOCK_SKEW_SECONDS:
                self._clock_reset_sequence = newest.sequence
            self._newest = receipt
        if not isinstance(message.event, CsrEnriched):
            self.forget(message.subject)
            return
        self.without_talos = message.event.without_talos
        known = self._requests.get(message.subject)
        if known is None or (known.sequence, known.published_at) != (receipt.sequence, receipt.published_at):
            self._requests[message.subject] = receipt

    def forget(self, subject: str) -> None:
        """Drop the receipt of an enriched request that the stream no longer contains."""
        self._requests.pop(subject, None)

    def problems(self) -> tuple[str, ...]:
        """Return why csr cannot approve by machine facts yet, in words for /readyz."""
        closed = "" if self.without_talos else self._gate.why_closed()
        return (closed,) if closed else ()

    def find_startup_wait(self) -> Wait | None:
        """Return a wait while a rival may be unknown; None once metadata has reported on every machine."""
        return None if self._gate.is_open else _REPORTS_MISSING

    def find_age_wait(self, message: Message, now: float) -> Wait | None:
        """Return a wait if that enriched request is too old for a decision, or its age unknown."""
        seconds = self.age_seconds(message, now)
        if seconds is not None and seconds <= self._max_age_seconds:
            return None
        since = "for an unknown time (the clock of the bus went back)"
        if seconds is not None:
            since = f"for more than {self._max_age_seconds:g} s (twice --metadata-republish-interval)"
        text = f"metadata has not published facts about this request {since}: csr waits until it does"
        return Wait(reason="age", message=text)

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
