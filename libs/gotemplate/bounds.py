"""What one template may cost: neither an operator's rule nor a value from a machine may hang the labeler."""

from typing import Final

# A rule's template is a line or a table of instance types; an annotation of all of a Node has 256 KiB.
MAX_SOURCE: Final = 32_768  # bytes
# Output, and every text on the way to it; a label has 63 bytes, the widest annotation anybody sets a few KiB.
MAX_TEXT: Final = 65_536  # bytes
# In scope at once; looking one up goes through them.
MAX_VARIABLES: Final = 256
# Nested blocks and parentheses as written. Each costs up to ten frames of Python's 1000.
MAX_DEPTH: Final = 32
# The same while it runs, through {{template}} too, which may call itself.
MAX_RUN_DEPTH: Final = 48
# Evaluated nodes and what they read and write, see Budget. A usual template takes 5 to 200.
MAX_STEPS: Final = 20_000
# What one step stands for where the cost grows with the data.
BYTES_PER_STEP: Final = 64
ITEMS_PER_STEP: Final = 16
# RE2's slowest engine takes 20 ns for each instruction and byte.
REGEX_WORK_PER_STEP: Final = 500
# A compiled pattern: RE2 refuses what is larger. Its library keeps the last 128 of the whole process.
MAX_REGEX_MEMORY: Final = 512 * 1024  # bytes
MAX_REGEX: Final = 1_024  # bytes of pattern
REGEX_INSTRUCTIONS_PER_STEP: Final = 16  # to compile


class BoundExceeded(Exception):
    """A template or its data asks for more than a bound allows; the message names the bound."""


class Budget:
    """Steps that one rendering has left: each node, each iteration and each so many bytes take one."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._left = steps

    @property
    def left(self) -> int:
        """Steps that may still be taken; less than 0 when one more was asked for than there were."""
        return self._left

    def spend(self, steps: int = 1) -> None:
        """Take steps, or raise BoundExceeded before the work is done."""
        self._left -= steps
        if self._left < 0:
            raise BoundExceeded(f"takes more than MAX_STEPS = {MAX_STEPS} steps")

    def read(self, size: int) -> None:
        """Pay for bytes that are about to be read or were written."""
        self.spend(size // BYTES_PER_STEP)


def fits(size: int) -> None:
    """Raise BoundExceeded unless a text of so many bytes may be made."""
    if size > MAX_TEXT:
        raise BoundExceeded(f"a text of {size} bytes is longer than MAX_TEXT = {MAX_TEXT} bytes")
