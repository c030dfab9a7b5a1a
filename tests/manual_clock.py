"""A clock that moves only when a test advances it."""

from datetime import datetime, timedelta

from tests.builders import NOW


class ManualClock:
    """Monotonic seconds and the time of day, both advanced by the test."""

    def __init__(self, start: datetime = NOW) -> None:
        self.seconds = 1000.0
        self._start = start

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.seconds - 1000.0)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
