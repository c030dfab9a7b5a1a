"""Converts any text to the nearest valid label value."""

import re
from typing import Final

_INVALID_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_AT_THE_ENDS: Final = "-_."
_MAX_LENGTH: Final = 63


def sanitize_label_value(text: str) -> str:
    """Replace each run of invalid characters by one `-` and truncate to 63 characters.

    Invalid characters at the ends are removed before and after truncation. Returns "" if nothing is left.
    A valid label value stays unchanged, so the function is idempotent.
    """
    plain = _INVALID_CHARACTERS.sub("-", text).strip(_NOT_AT_THE_ENDS)
    return plain[:_MAX_LENGTH].rstrip(_NOT_AT_THE_ENDS)
