"""The pulses of all running processes, and the errors of the last minutes that follow from them. Pure."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from libs.common.contract.events import PULSE_TTL_SECONDS, Pulse, Quarantine
from libs.common.contract.services import IPAM

RECENT_SECONDS: Final = 300.0


class PulseBoard:
    """Keeps the last pulse of each service of each process."""

    def __init__(self) -> None:
        self._pulses: dict[tuple[str, str], tuple[Pulse, float]] = {}  # and its time
        self._errors: deque[tuple[float, str, str, int]] = deque()  # time, service, cause, number

    def apply(self, pulse: Pulse, published_at: float, *, live: bool) -> None:
        """Apply a pulse. Without an earlier one, its errors are new only if its process is."""
        key = (pulse.service, pulse.instance)
        before, _ = self._pulses.get(key, (None, 0.0))
        counted = before.errors if before is not None else {} if live else pulse.errors
        for cause, count in pulse.errors.items():
            if (new := count - counted.get(cause, 0)) > 0:
                self._errors.append((published_at, pulse.service, cause, new))
        self._pulses[key] = (pulse, published_at)

    def expire(self, now: float) -> None:
        """Forget pulses and errors by their age: followers do not learn that a message has expired."""
        for key in [key for key, (_, at) in self._pulses.items() if at < now - PULSE_TTL_SECONDS]:
            del self._pulses[key]
        while self._errors and self._errors[0][0] < now - RECENT_SECONDS:
            self._errors.popleft()

    def list_pulses(self) -> tuple[Pulse, ...]:
        """Return the pulses of all running processes."""
        return tuple(pulse for pulse, _ in self._pulses.values())

    def find_quarantine(self) -> Quarantine | None:
        """Return what the ipam process that read the claims last reports; None without a report."""
        reports = (each.quarantine for each, _ in self._pulses.values() if each.service == IPAM.service)
        return max(filter(None, reports), key=lambda report: report.read_at, default=None)

    def count_recent_errors(self) -> Mapping[str, Mapping[str, int]]:
        """Return service -> cause -> number of errors of the last five minutes."""
        counts: dict[str, Counter[str]] = {}
        for _, service, cause, number in self._errors:
            counts.setdefault(service, Counter())[cause] += number
        return counts
