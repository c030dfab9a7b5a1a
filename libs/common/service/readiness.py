"""Readiness of a process: its checks, their reasons, and a log line for each change."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

log = logging.getLogger(__name__)

ReadinessCheck = Callable[[], tuple[str, ...]]

_LOOK_EVERY_SECONDS: Final = 0.1
_UNREADY_LOG_SECONDS: Final = 5.0  # the adapter itself logs a shorter reconnect


class Readiness:
    """The readiness checks of a process, by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create it without checks, not ready. `clock` is monotonic, in seconds."""
        self._clock = clock
        self._changed_at = clock()
        self._checks: dict[str, ReadinessCheck] = {"process": lambda: ("still starting",)}

    def add_check(self, name: str, problems: ReadinessCheck) -> None:
        """Add a check; the process is ready only if it has no problems."""
        self._checks[name] = problems

    def mark_started(self) -> None:
        """Record that the process has started and all checks have been added."""
        self._checks["process"] = lambda: ()

    def mark_stopping(self) -> None:
        """Record that the process is ending: it is not ready, whatever its checks return."""
        self._checks["process"] = lambda: ("ending",)

    def problems(self) -> Mapping[str, tuple[str, ...]]:
        """Return the problems of each check; checks without problems are included."""
        return {name: check() for name, check in self._checks.items()}

    async def log_changes(self) -> None:
        """Log when the process becomes ready, and when it is not ready for 5 s. Runs until cancelled."""
        ready, is_logged = False, False
        while True:
            problems = self.problems()
            seconds = round(self._clock() - self._changed_at, 2)
            if ready is any(problems.values()):
                ready, is_logged, self._changed_at = not ready, False, self._clock()
                if ready:
                    log.info("ready", extra={"after_seconds": seconds})
            elif not ready and not is_logged and seconds >= _UNREADY_LOG_SECONDS:
                reasons = [f"{name}: {reason}" for name, found in problems.items() for reason in found]
                log.warning("not ready", extra={"reasons": "; ".join(reasons), "for_seconds": seconds})
                is_logged = True
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
