"""Tables of many cases that take milliseconds together: one test checks all, and a failure names its case."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def naming(case: object) -> Iterator[None]:
    """Add the case to any error of the block, as a note that pytest prints."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {case}")
        raise
