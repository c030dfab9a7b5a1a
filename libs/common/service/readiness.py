"""Whether a process is ready, why it is not, and the log line when that changes."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

log = logging.getLogger(__name__)

ReadinessCheck = Callable[[], tuple[str, ...]]

_LOOK_EVERY_SECONDS: Final = 0.1
_UNREADY_WORTH_TELLING_SECONDS: Final = 5.0  # a reconnect that takes less is told where it happens


class Readiness:
    """All checks of a process by name, each with its reasons for not being ready."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._changed_at = clock()
        self._checks: dict[str, ReadinessCheck] = {"process": lambda: ("still starting",)}

    def add_check(self, name: str, problems: ReadinessCheck) -> None:
        """From now on this must have no problems either."""
        self._checks[name] = problems

    def mark_started(self) -> None:
        """All checks have been added."""
        self._checks["process"] = lambda: ()

    def mark_stopping(self) -> None:
        """Not ready any more, whatever the checks say."""
        self._checks["process"] = lambda: ("ending",)

    def problems(self) -> Mapping[str, tuple[str, ...]]:
        """Each check with its problems; checks without any are included."""
        return {name: check() for name, check in self._checks.items()}

    async def log_changes(self) -> None:
        """Log it when the process becomes ready, and when it has not been so for a while; until cancelled."""
        ready, told = False, False
        while True:
            problems = self.problems()
            seconds = round(self._clock() - self._changed_at, 2)
            if ready is any(problems.values()):
                ready, told, self._changed_at = not ready, False, self._clock()
                if ready:
                    log.info("ready", extra={"after_seconds": seconds})
            elif not ready and not told and seconds >= _UNREADY_WORTH_TELLING_SECONDS:
                reasons = [f"{name}: {reason}" for name, found in problems.items() for reason in found]
                log.warning("not ready", extra={"reasons": "; ".join(reasons), "for_seconds": seconds})
                told = True
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
