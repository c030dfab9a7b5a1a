"""Converts the result of a template to a value that Kubernetes accepts, or raises with the reason."""

import re
from collections.abc import Sequence
from typing import Final

from libs.common.cloud_config.kubernetes_names import label_value_problem, parse_taint
from libs.common.contract.node import Taint
from libs.gotemplate.runes import REPLACEMENT, trim
from services.labeler.core.rules.bounds import MAX_ANNOTATION, MAX_METADATA

# Kubernetes accepts control characters. Annotations may need tab, line feed and carriage return; the others
# are noise from a machine's firmware or control sequences for an operator's terminal.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BECOMES_A_LABEL: Final = frozenset({"region", "zone", "instance_type"})
_INVALID_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_AT_THE_ENDS: Final = "-_."
_MAX_LENGTH: Final = 63


class InvalidValueError(ValueError):
    """The result of a template is invalid for its key; the message is the reason."""


def make_label_value(text: str, *, sanitize: bool) -> str:
    """Return the text, or its sanitized form if it is invalid and `sanitize`. Raises InvalidValueError."""
    problem = label_value_problem(text)
    if not problem:
        return text
    nearest = sanitize_label_value(text)
    if not sanitize:
        raise InvalidValueError(
            f"{problem}; sanitize: true on the rule would make it {nearest!r}" if nearest else problem
        )
    if not nearest:
        raise InvalidValueError("nothing is left after sanitization")
    return nearest


def sanitize_label_value(text: str) -> str:
    """Replace each run of invalid characters by one `-` and truncate to 63 characters.

    Invalid characters at the ends are removed before and after truncation. Returns "" if nothing is left.
    A valid label value stays unchanged, so the function is idempotent.
    """
    plain = _INVALID_CHARACTERS.sub("-", text).strip(_NOT_AT_THE_ENDS)
    return plain[:_MAX_LENGTH].rstrip(_NOT_AT_THE_ENDS)


def make_annotation_value(text: str) -> str:
    """Return the text, with U+FFFD for control characters except tab, line feed and carriage return.

    Raises InvalidValueError if it is longer than MAX_ANNOTATION.
    """
    if len(text) > MAX_ANNOTATION:
        raise InvalidValueError(
            f"an annotation of a rule has at most {MAX_ANNOTATION} characters, this has {len(text)}"
        )
    return _CONTROL.sub(REPLACEMENT, text)


def make_taint(key: str, text: str) -> Taint:
    """Return the taint for `value:Effect` or `Effect`. Raises InvalidValueError."""
    try:
        parsed = parse_taint(text)
    except ValueError as error:
        raise InvalidValueError(f"a taint is {error}") from None
    return Taint(key=key, value=parsed.value, effect=parsed.effect)


def make_metadata_value(
    field: str, text: str, *, sanitize: bool, actions: Sequence[tuple[int, int]] = ()
) -> str | bool:
    """Return the trimmed value of a field of PlatformMetadata. Raises InvalidValueError.

    `spot` is true only if the text is exactly "true". `actions`: where the template's actions wrote the text,
    as in `libs.gotemplate.render`; they matter for a providerID.
    """
    if field == "spot":
        return text == "true"
    value = trim(text.encode()).decode()
    if field in _BECOMES_A_LABEL:
        return make_label_value(value, sanitize=sanitize)
    if len(value) > MAX_METADATA or not value.isprintable():
        raise InvalidValueError(f"it must be at most {MAX_METADATA} printable characters in one line")
    if field != "provider_id":
        return value
    if not value or " " in value or REPLACEMENT in value:
        raise InvalidValueError("a providerID is neither empty nor has it spaces; it cannot be taken back")
    if problem := find_empty_part(text.encode(), actions):
        raise InvalidValueError(f"{problem}; a providerID cannot be taken back")
    return value


def find_empty_part(text: bytes, actions: Sequence[tuple[int, int]]) -> str:
    """Return which part of a providerID is empty, "" if none is.

    A part is what stands between two slashes, and before or after them. No part may be empty because an
    action wrote nothing or wrote the slashes around it, nor may the last one. A literally empty authority is
    valid: `aws:///zone/id`. A part with literal text lacks its value if it has actions and all wrote nothing.
    """
    if text.lstrip().startswith(b"://"):
        return "its scheme has no value from the machine"
    start = text.find(b"://") + 3 if b"://" in text else 0
    parts = text[start:].split(b"/")
    for index, part in enumerate(parts):
        end = start + len(part)
        written = [each for each in actions if each[0] <= end and each[1] >= start]
        has_empty_action = any(first == last for first, last in written)
        if part.strip():
            gave_text = any(min(last, end) > max(first, start) for first, last in written)
            is_empty = has_empty_action and not gave_text
        else:
            is_authority = index == 0 and len(parts) > 1
            is_empty = index == len(parts) - 1 or (has_empty_action if is_authority else bool(written))
        if is_empty:
            before = text[:start].decode()
            where = f"after {before!r}" if before else "at its start"
            return f"its part {where} has no value from the machine"
        start = end + 1
    return ""
