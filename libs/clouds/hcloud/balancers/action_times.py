"""Times at which to poll an action: learned from earlier ones, so that one or two requests suffice."""

from typing import Final

FIRST_POLL_SECONDS: Final = 0.4  # of a command that was never seen
_EARLIER: Final = 0.95  # an action that was not seen running shortly before its end may have ended before
_SHORTLY: Final = 0.9
_STEP: Final = 0.06  # of the time so far, to the next request
_STEP_OF_UNKNOWN: Final = 0.25
_MIN_STEP_SECONDS: Final = 0.03
# for each action that runs at the same time, so that many of them do not use up the requests of a minute
_STEP_SECONDS_PER_ACTION: Final = 0.01
_MAX_STEP_SECONDS_OF_MANY: Final = 0.5


class ActionTimes:
    """Expected durations by command."""

    def __init__(self, first_poll_seconds: float) -> None:
        self._first_poll_seconds = first_poll_seconds
        self._expected: dict[str, float] = {}

    def seconds_until_first(self, command: str) -> float:
        """Return the time from the start of an action to the first request."""
        return self._expected.get(command, self._first_poll_seconds)

    def seconds_until_next(self, command: str, elapsed: float, *, running: int = 1) -> float:
        """Return the time to the next request, `elapsed` seconds after the start."""
        share = _STEP if command in self._expected else _STEP_OF_UNKNOWN
        of_many = min(_STEP_SECONDS_PER_ACTION * running, _MAX_STEP_SECONDS_OF_MANY)
        return max(_MIN_STEP_SECONDS, share * elapsed, of_many)

    def record(self, command: str, elapsed: float, *, last_running: float) -> None:
        """Record an action that had ended after this time, and was last seen running after the other."""
        is_exact = last_running >= _SHORTLY * elapsed
        self._expected[command] = elapsed if is_exact else elapsed * _EARLIER
