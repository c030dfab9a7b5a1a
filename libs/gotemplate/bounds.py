"""Limits the cost of one template, so that neither a rule nor a value from a machine blocks the labeler."""

from typing import Final

# A rule's template is a line or a table of instance types; all annotations of a Node have at most 256 KiB.
MAX_SOURCE: Final = 32_768  # bytes
# Output and intermediate texts. A label has 63 bytes; the longest annotations in practice have a few KiB.
MAX_TEXT: Final = 65_536  # bytes
# In scope at once; a lookup is linear.
MAX_VARIABLES: Final = 256
# Nested blocks and parentheses in the source. Each uses up to ten of Python's 1000 stack frames.
MAX_DEPTH: Final = 32
# The same during execution, including {{template}}, which may be recursive.
MAX_RUN_DEPTH: Final = 48
# Evaluated nodes and the data that they read and write, see Budget. A usual template takes 5 to 200 steps.
MAX_STEPS: Final = 20_000
# The amount of data that counts as one step.
BYTES_PER_STEP: Final = 64
ITEMS_PER_STEP: Final = 16
# RE2's slowest engine takes 20 ns for each instruction and byte.
REGEX_WORK_PER_STEP: Final = 500
# A compiled pattern: RE2 rejects larger ones. Its library caches the last 128 patterns of the process.
MAX_REGEX_MEMORY: Final = 512 * 1024  # bytes
MAX_REGEX: Final = 1_024  # bytes of pattern
REGEX_INSTRUCTIONS_PER_STEP: Final = 16  # to compile


class BoundExceeded(Exception):
    """A template or its data exceeds a bound; the message names the bound."""


class Budget:
    """The remaining steps of one rendering: each node, iteration and BYTES_PER_STEP bytes take one."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._left = steps

    @property
    def left(self) -> int:
        """The remaining steps; negative after the budget was exceeded."""
        return self._left

    def spend(self, steps: int = 1) -> None:
        """Subtract the steps of work before it is done. Raises BoundExceeded."""
        self._left -= steps
        if self._left < 0:
            raise BoundExceeded(f"takes more than MAX_STEPS = {MAX_STEPS} steps")

    def read(self, size: int) -> None:
        """Subtract the steps for reading or writing `size` bytes. Raises BoundExceeded."""
        self.spend(size // BYTES_PER_STEP)


def fits(size: int) -> None:
    """Raise BoundExceeded if a text of `size` bytes is longer than MAX_TEXT."""
    if size > MAX_TEXT:
        raise BoundExceeded(f"a text of {size} bytes is longer than MAX_TEXT = {MAX_TEXT} bytes")
