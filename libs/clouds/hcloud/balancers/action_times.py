"""When to ask for the end of an action: learned from earlier ones, so that one or two requests suffice."""

from typing import Final

FIRST_POLL_SECONDS: Final = 0.4  # of a command that was never seen
_EARLIER: Final = 0.95  # an action that had ended at the first request may have ended before
_STEP: Final = 0.06  # of the time so far, to the next request
_STEP_OF_UNKNOWN: Final = 0.25
_MIN_STEP_SECONDS: Final = 0.03


class ActionTimes:
    """Expected durations by command."""

    def __init__(self, first_poll_seconds: float) -> None:
        self._first_poll_seconds = first_poll_seconds
        self._expected: dict[str, float] = {}

    def seconds_until_first(self, command: str) -> float:
        """Return the time from the start of an action to the first request."""
        return self._expected.get(command, self._first_poll_seconds)

    def seconds_until_next(self, command: str, elapsed: float) -> float:
        """Return the time to the next request, `elapsed` seconds after the start."""
        share = _STEP if command in self._expected else _STEP_OF_UNKNOWN
        return max(_MIN_STEP_SECONDS, share * elapsed)

    def record(self, command: str, elapsed: float, *, requests: int) -> None:
        """Record an action that was seen to have ended after this time, by the last of these requests."""
        self._expected[command] = elapsed * _EARLIER if requests == 1 else elapsed
