"""The nearest label value to a text that is none."""

import re
from typing import Final

_INVALID_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_AT_THE_ENDS: Final = "-_."
_MAX_LENGTH: Final = 63


def sanitize_label_value(text: str) -> str:
    """Each run of characters that a label value cannot have becomes one `-`; then 63 characters are kept.

    What a value cannot begin or end with is taken from its ends, before and after. "" when nothing is left. A
    text that is a label value stays as it is, so doing it twice changes nothing.
    """
    plain = _INVALID_CHARACTERS.sub("-", text).strip(_NOT_AT_THE_ENDS)
    return plain[:_MAX_LENGTH].rstrip(_NOT_AT_THE_ENDS)
