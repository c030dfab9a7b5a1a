"""The patterns of selectors: RE2, as in Go, linear in the text whatever the pattern."""

import re
from functools import lru_cache
from typing import Any, Final

import re2

_MOST_CHARACTERS: Final = 10_000
_MOST_MEMORY: Final = 2 << 20  # bytes per pattern, program and cache
PATTERN_CACHE_SIZE: Final = 128  # compiled; a file with more of them compiles anew for each machine
# Of all patterns of a file: RE2 takes 0.35 s to compile a million.
_MOST_INSTRUCTIONS: Final = 2_000_000
_TOO_LARGE: Final = "pattern too large"  # RE2's words
_OF_TOO_LARGE_A_ONE: Final = 40_000  # what it takes to find that out
_ONE_BYTE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\C")  # Go has no \C: half a character is no text


class PatternError(ValueError):
    """The pattern is none; says why in RE2's words."""


def check_pattern(pattern: str) -> None:
    """Raise PatternError if RE2 does not take it."""
    if len(pattern) > _MOST_CHARACTERS:
        raise PatternError(f"it is longer than {_MOST_CHARACTERS} characters")
    if _ONE_BYTE.search(pattern):
        raise PatternError(r"invalid escape sequence: \C")
    try:
        _compiled(pattern)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        raise PatternError(said.decode(errors="replace") if isinstance(said, bytes) else str(said)) from None


class PatternBudget:
    """Those of one file, which together must not take minutes to read."""

    def __init__(self) -> None:
        self._left = _MOST_INSTRUCTIONS

    def check(self, pattern: str) -> None:
        """Raise PatternError if RE2 does not take it, or if the file holds too much for another one."""
        if self._left < 0:
            raise PatternError("the patterns before it are too many and too large to be read at all")
        try:
            check_pattern(pattern)
        except PatternError as error:
            self._left -= _OF_TOO_LARGE_A_ONE if str(error).startswith(_TOO_LARGE) else 0
            raise
        self._left -= count_instructions(pattern)


def pattern_matches(pattern: str, text: str) -> bool:
    """Whether a pattern that was checked is found anywhere in the text."""
    return _compiled(pattern).search(text.encode(errors="replace")) is not None


def count_instructions(pattern: str) -> int:
    """How large a pattern that was checked is, compiled: a search costs at most that times the text."""
    return int(_compiled(pattern).programsize)


@lru_cache(maxsize=PATTERN_CACHE_SIZE)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    return re2.compile(pattern.encode(errors="replace"), options)
