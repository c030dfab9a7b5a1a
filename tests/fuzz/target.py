"""A parser under test: what it may raise, and the work that an input may cost."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, Literal

import msgspec

# Python and C functions called per input, measured on the seeds and multiplied by about ten. Code that is
# quadratic exceeds them at the largest input.
CALLS_AT_LEAST: Final = 30_000
CALLS_PER_BYTE: Final = 40


Format = Literal["json", "yaml", "template", "protobuf", "der", "http"]


class TooMuchWork(BaseException):
    """A parser has called more functions than an input of this size may cost."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One parser. `run` parses the bytes and checks its own result."""

    name: str
    format: Format
    run: Callable[[bytes], object]
    seeds: Callable[[], tuple[bytes, ...]]
    errors: tuple[type[Exception], ...] = ()  # that the parser documents
    max_bytes: int = 2**21  # of an input that reaches the parser
    examples: int = 60  # in `make test`, at most

    def fuzz(self, data: bytes) -> None:
        """Return if the parser returned a value or raised one of its errors; raise anything else."""
        with contextlib.suppress(*self.errors):
            self.run(data)

    def fuzz_counted(self, data: bytes) -> None:
        """Do the same. Raises TooMuchWork after too many function calls."""
        with limit_calls(CALLS_AT_LEAST + CALLS_PER_BYTE * len(data)):
            self.fuzz(data)


@contextlib.contextmanager
def limit_calls(limit: int) -> Iterator[Callable[[], int]]:
    """Raise TooMuchWork in this thread after so many calls; yield a function that returns their number."""
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}
        if calls > limit:
            sys.setprofile(None)
            raise TooMuchWork(f"more than {limit} function calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(before)
