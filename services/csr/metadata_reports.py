"""Tracks metadata's reports: whether all machines are known, and the age of the report on each request."""

from typing import Final

from libs.common.bus.protocol import Message
from libs.common.contract.events import CsrEnriched, SnapshotComplete
from libs.common.service.startup_gate import StartupGate
from services.csr.enrichment_ages import EnrichmentAges

_MAX_AGE_IN_INTERVALS: Final = 2  # one repetition may get lost
# One constant text for all requests and reports: each change would publish and log every request again.
_REPORTS_MISSING: Final = "not every machine is known yet: csr waits for metadata's first reports"


class MetadataReports:
    """Follows every message of the flow. `now` is monotonic time in seconds."""

    def __init__(self, *, repeat_seconds: float, without_talos: bool) -> None:
        """`repeat_seconds`: the interval at which metadata publishes unchanged enrichments.

        `without_talos`: whether metadata queries no machine; each enriched request updates it.
        """
        self._gate = StartupGate()
        self._ages = EnrichmentAges()
        self._max_age_seconds = _MAX_AGE_IN_INTERVALS * repeat_seconds
        self.without_talos = without_talos

    def problems(self) -> tuple[str, ...]:
        """Return why csr cannot approve by machine facts yet, in words for /readyz."""
        closed = "" if self.without_talos else self._gate.why_closed()
        return (closed,) if closed else ()

    def explain_missing_reports(self) -> str:
        """Return why a rival may be unknown; "" if metadata has reported on every machine."""
        return "" if self._gate.is_open else _REPORTS_MISSING

    def explain_staleness(self, message: Message, now: float) -> str:
        """Return why csr may not decide by that enriched request; "" if it was published recently."""
        seconds = self._ages.age_seconds(message, now)
        if seconds is not None and seconds <= self._max_age_seconds:
            return ""
        since = "for an unknown time (the clock of the bus went back)"
        if seconds is not None:
            since = f"for more than {self._max_age_seconds:g} s (twice --metadata-republish-interval)"
        return f"metadata has not published facts about this request {since}: csr waits until it does"

    # ---- messages of the flow

    def apply(self, message: Message, *, now: float, is_live: bool, is_complete: bool) -> bool:
        """Apply a message; return whether it opened the startup gate.

        `is_complete`: the cache is complete with this message.
        """
        self._ages.apply(message, now=now, is_live=is_live)
        if isinstance(message.event, CsrEnriched):
            self.without_talos = message.event.without_talos
        if isinstance(message.event, SnapshotComplete) and is_complete and not self._gate.is_set:
            self._gate.set()
        return self._gate.apply(message.event)

    def handle_expired(self, subject: str) -> bool:
        """Drop a subject that the stream no longer contains; return whether that opened the startup gate."""
        self._ages.handle_expired(subject)
        return self._gate.handle_expired(subject)

    def handle_caught_up(self, *, is_complete: bool) -> None:
        """Handle the end of the replay; `is_complete`: the cache contains all Nodes."""
        if is_complete:
            self._gate.set()
        else:
            self._gate.unset()

    def clear(self) -> None:
        """Drop everything, after the stream was replaced."""
        self._gate.clear()
        self._ages.clear()
