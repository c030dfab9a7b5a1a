"""Clocks that tests advance: one by hand, and one of an event loop that never waits."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import Any, Final, TypeVar, TypeVarTuple

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


class RunningClock:
    """The real time, and what the test adds: servers of other processes answer while it runs."""

    def __init__(self) -> None:
        self._added = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._added

    def now(self) -> datetime:
        """Return the time of day."""
        return datetime.now(UTC) + timedelta(seconds=self._added)

    def advance(self, seconds: float) -> None:
        self._added += seconds


ResultT = TypeVar("ResultT")
_ArgumentTs = TypeVarTuple("_ArgumentTs")
_ARRIVAL: Final = 0.001  # real seconds, on the loopback
_LONG_STEP: Final = 0.3  # seconds of the clock; hundreds of these take no real time
_TRANSFER: Final = 0.0001  # seconds of the clock


class _JumpingSelector(selectors.SelectSelector):
    """Adds the time of each wait to its clock instead of waiting.

    Each turn of the loop takes a nanosecond. Otherwise a task that sleeps for less than a float can add to
    the clock would never see time pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1000.0
        self.threads = 0  # at work

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.threads:
            return super().select(timeout)
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("every task waits, and no timer is set")
        if not ready and timeout is not None:
            self.seconds += max(1e-9, timeout)
        return ready


class _PatientSelector(_JumpingSelector):
    """As above, for servers of the same thread: what was sent has to arrive before time passes."""

    def __init__(self) -> None:
        super().__init__()
        self._is_quiet = True  # nothing has arrived since time passed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.threads:
            return super().select(timeout)
        step = timeout or 0
        is_patient = not self._is_quiet or step >= _LONG_STEP
        ready = selectors.SelectSelector.select(self, min(step, _ARRIVAL) if is_patient else 0)
        self._is_quiet = not ready
        if not ready:
            return super().select(timeout)
        self.seconds += _TRANSFER  # what follows an answer is later than it
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Serves tasks and timers of one thread; a test must not wait for other processes on it.

    `has_servers`: a test may use servers that run on it, too. While a thread of an executor works, as in a
    login by a library, no time passes.
    """

    def __init__(self, *, has_servers: bool = False) -> None:
        self._clock = _PatientSelector() if has_servers else _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.seconds

    def pass_time(self, seconds: float) -> None:
        self._clock.seconds += seconds

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_ArgumentTs], ResultT], *args: *_ArgumentTs
    ) -> asyncio.Future[ResultT]:
        """Run it in a thread."""
        future = super().run_in_executor(executor, func, *args)
        self._clock.threads += 1
        future.add_done_callback(self._end_thread)
        return future

    def _end_thread(self, _: Any) -> None:
        self._clock.threads -= 1


class VirtualClock:
    """Monotonic seconds and the time of day of the loop that runs when the clock is made.

    It can be read after that loop has ended: gauges of the process are, by later tests.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> float:
        return self._loop.time()

    def now(self) -> datetime:
        """Return the time of day."""
        return NOW + timedelta(seconds=self() - 1000.0)

    def freeze(self, seconds: float) -> None:
        """Let time pass while no task runs."""
        assert isinstance(self._loop, VirtualLoop)
        self._loop.pass_time(seconds)


def run_virtually(work: Coroutine[Any, Any, ResultT], *, has_servers: bool = False) -> ResultT:
    """Run to the end on a loop of its own; return the result."""
    with asyncio.Runner(loop_factory=partial(VirtualLoop, has_servers=has_servers)) as runner:
        return runner.run(work)


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return the test for `run_virtually`: no window of seconds passes while it works."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        run_virtually(test(*arguments, **named))

    return run
