"""Reads the values of a Service's annotations, for the tables of all clouds.

Each parser raises ValueError with the valid values, as a noun phrase.
"""

import re
from collections.abc import Callable, Collection, Mapping
from itertools import takewhile
from typing import Any, Final, Protocol

from libs.clouds.balancers import InvalidField
from libs.common.cloud_config.findings import suggest_name
from libs.common.go_values import parse_duration

_MAX_SHOWN: Final = 64
_MAX_UNKNOWN: Final = 20  # named ones: a Service may have thousands, and each takes 0.4 ms
_HOSTNAME: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
)


class AnnotationRow(Protocol):
    """A row of a table of annotations."""

    @property
    def parse(self) -> Callable[[str], object]: ...


def parse_text(text: str) -> str:
    """Return the text."""
    if not text or not text.isprintable():
        raise ValueError("a printable text")
    return text


def parse_choice(*choices: str) -> Callable[[str], str]:
    """Return a parser of one of these words in lower case; the text may be in any case."""

    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text.lower()

    return parse


def parse_whole(lowest: int, highest: int) -> Callable[[str], int]:
    """Return a parser of whole numbers in this range."""

    def parse(text: str) -> int:
        number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
        if not lowest <= number <= highest:
            raise ValueError(f"a number from {lowest} to {highest}")
        return number

    return parse


def parse_seconds(lowest: int, highest: int) -> Callable[[str], int]:
    """Return a parser of durations of whole seconds in this range."""

    def parse(text: str) -> int:
        try:
            seconds = parse_duration(text)
        except ValueError:
            seconds = -1
        if not lowest <= seconds <= highest or seconds != int(seconds):
            raise ValueError(f"a duration of whole seconds from {lowest}s to {highest}s, with its unit")
        return int(seconds)

    return parse


def parse_list(text: str) -> tuple[str, ...]:
    """Return the items of a list with commas."""
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise ValueError("a list with commas between its items")
    return items


def parse_hostname(text: str) -> str:
    """Return the DNS name."""
    if not _HOSTNAME.fullmatch(text):
        raise ValueError("a DNS name in lower case")
    return text


def parse_values(
    texts: Mapping[str, str], fields: Mapping[str, str], rows: Mapping[str, AnnotationRow]
) -> tuple[dict[str, Any], list[InvalidField]]:
    """Return the values by field, and what is invalid.

    `fields` has the field of each name, and `rows` the row of each field.
    """
    unknown = sorted(texts.keys() - fields.keys())
    invalid = [
        InvalidField(field=name, reason=f"it is not supported{_suggest(name, fields)}", is_unknown=True)
        for name in unknown[:_MAX_UNKNOWN]
    ]
    if len(unknown) > _MAX_UNKNOWN:
        reason = f"{len(unknown) - _MAX_UNKNOWN} more are not supported"
        invalid.append(InvalidField(field="others", reason=reason, is_unknown=True))
    values: dict[str, Any] = {}
    for name in sorted(texts.keys() & fields.keys()):
        text = texts[name]
        try:
            values[fields[name]] = rows[fields[name]].parse(text)
        except ValueError as error:
            shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
            invalid.append(InvalidField(field=name, reason=f'"{shown}" is not {error}'))
    return values, invalid


def _suggest(name: str, known: Collection[str]) -> str:
    same = sum(1 for _ in takewhile(lambda letters: len({*letters}) == 1, zip(name, *known, strict=False)))
    return suggest_name(name[same:], [each[same:] for each in known], prefix=name[:same]) or ": remove it"
