"""What keeps a bus from being usable, as each implementation records it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from libs.common.contract.subjects import STREAM


class ConsumeCall(Protocol):
    """A `consume` call that is running."""

    problem: str  # why it receives no messages; "" if it does


class BusProblems:
    """Records publishes that a full stream rejected, and the consume calls that are running."""

    def __init__(self) -> None:
        self._rejected_bytes = 0  # size of the publish that found the stream full; 0 while it is not full
        self._calls: list[ConsumeCall] = []

    @contextmanager
    def during(self, call: ConsumeCall) -> Iterator[None]:
        """Return a context in which the problem of that call is one of the bus."""
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.remove(call)

    def record_full(self, size: int) -> None:
        """Record that the stream is full: it rejected a publish of `size` bytes."""
        self._rejected_bytes = size

    def record_size(self, used: int, limit: int) -> None:
        """Record the size of the stream, which is no longer full if that publish fits twice.

        A `limit` below 0 is no limit.
        """
        if limit < 0 or used + 2 * self._rejected_bytes < limit:
            self._rejected_bytes = 0

    def full(self) -> str:
        """Return that the stream is full; "" if it is not."""
        rejected = f"it rejected a publish of {self._rejected_bytes} bytes"
        return f"stream {STREAM} is full: {rejected}" if self._rejected_bytes else ""

    def consuming(self) -> tuple[str, ...]:
        """Return the problems of the consume calls."""
        return tuple(call.problem for call in self._calls if call.problem)
