"""Regular expressions of selectors: RE2, as in Go, with linear time for any pattern."""

import re
from functools import lru_cache
from typing import Any, Final

_MOST_CHARACTERS: Final = 10_000
_MOST_MEMORY: Final = 2 << 20  # bytes per pattern, program and cache
PATTERN_CACHE_SIZE: Final = 128  # compiled patterns; a file with more of them compiles again for each machine
# For all patterns of a file: RE2 needs 0.35 s to compile a million.
_MOST_INSTRUCTIONS: Final = 2_000_000
_TOO_LARGE: Final = "pattern too large"  # RE2's message
_OF_TOO_LARGE_A_ONE: Final = 40_000  # the cost of detecting it
_ONE_BYTE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\C")  # Go has no \C, which matches half a character


class PatternError(ValueError):
    """The pattern is invalid; the text is RE2's message."""


def check_pattern(pattern: str) -> None:
    """Raise PatternError if RE2 rejects the pattern."""
    import re2  # noqa: PLC0415 - 2 MB, and few files have a pattern

    if len(pattern) > _MOST_CHARACTERS:
        raise PatternError(f"it is longer than {_MOST_CHARACTERS} characters")
    if _ONE_BYTE.search(pattern):
        raise PatternError(r"invalid escape sequence: \C")
    try:
        _compiled(pattern)
    except re2.error as error:
        message = error.args[0] if error.args else ""
        raise PatternError(
            message.decode(errors="replace") if isinstance(message, bytes) else str(message)
        ) from None


class PatternBudget:
    """Limits the total compile time of the patterns in one file."""

    def __init__(self) -> None:
        self._left = _MOST_INSTRUCTIONS

    def check(self, pattern: str) -> None:
        """Raise PatternError if RE2 rejects the pattern, or if the budget of the file is used up."""
        if self._left < 0:
            raise PatternError("the earlier patterns of the file are too many and too large")
        try:
            check_pattern(pattern)
        except PatternError as error:
            self._left -= _OF_TOO_LARGE_A_ONE if str(error).startswith(_TOO_LARGE) else 0
            raise
        self._left -= count_instructions(pattern)


def pattern_matches(pattern: str, text: str) -> bool:
    """Return whether a checked pattern matches anywhere in the text."""
    return _compiled(pattern).search(text.encode(errors="replace")) is not None


def count_instructions(pattern: str) -> int:
    """Return the size of a checked pattern, compiled. A search costs at most that times the text."""
    return int(_compiled(pattern).programsize)


@lru_cache(maxsize=PATTERN_CACHE_SIZE)
def _compiled(pattern: str) -> Any:
    import re2  # noqa: PLC0415 - as above

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    return re2.compile(pattern.encode(errors="replace"), options)
