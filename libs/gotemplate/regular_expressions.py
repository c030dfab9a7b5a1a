r"""Implements Go's regexp with RE2, which has the same syntax and no backtracking.

The budget is charged before each search. Two differences: Go rejects \C (any byte), and only Go matches
invalid UTF-8.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from libs.gotemplate.bounds import (
    MAX_REGEX,
    MAX_REGEX_MEMORY,
    REGEX_INSTRUCTIONS_PER_STEP,
    REGEX_WORK_PER_STEP,
    BoundExceeded,
    Budget,
    fits,
)
from libs.gotemplate.errors import FunctionError
from libs.gotemplate.runes import character_at, characters, is_word, raw, valid

_TOO_LARGE: Final = "pattern too large"
_Span = tuple[int, int]


@cache
def _options() -> Any:
    import re2  # noqa: PLC0415 - 2 MB, and few rules have a regular expression

    options = re2.Options()
    options.max_mem = MAX_REGEX_MEMORY
    options.log_errors = False  # an operator reads the error, not stderr
    return options


class _Pattern:
    """A compiled pattern whose searches are charged to the budget."""

    def __init__(self, pattern: bytes, budget: Budget) -> None:
        if len(pattern) > MAX_REGEX:
            raise BoundExceeded(f"a regular expression is longer than MAX_REGEX = {MAX_REGEX} bytes")
        import re2  # noqa: PLC0415 - as above

        budget.read(len(pattern))
        try:
            self._compiled = re2.compile(pattern, _options())
        except re2.error as error:
            said = valid(error.args[0]) if error.args else ""
            if said.startswith(_TOO_LARGE):
                raise BoundExceeded(
                    f"a regular expression needs more than MAX_REGEX_MEMORY = {MAX_REGEX_MEMORY} bytes"
                ) from error
            mistake, _, where = said.partition(": ")
            raise FunctionError(f"error parsing regexp: {mistake}: `{where}`") from error
        self._budget = budget
        self._instructions: int = self._compiled.programsize
        budget.spend(self._instructions // REGEX_INSTRUCTIONS_PER_STEP)
        self.groups: dict[bytes, int] = self._compiled.groupindex

    def search(self, text: bytes, start: int = 0) -> list[_Span] | None:
        """Return the spans of the leftmost match from a byte on and of each group, (-1, -1) for none."""
        self._budget.spend(1 + self._instructions * (len(text) - start) // REGEX_WORK_PER_STEP)
        match = self._compiled.search(text, start)
        return None if match is None else [match.span(n) for n in range(self._compiled.groups + 1)]


def find(pattern: bytes, text: bytes, group: int, budget: Budget) -> bytes:
    """Return the first match of a group; empty if it did not match or does not exist."""
    spans = _Pattern(pattern, budget).search(text)
    return _matched(text, spans, group) if spans else b""


def replace_all(pattern: bytes, text: bytes, replacement: bytes, budget: Budget) -> bytes:
    """Implement ReplaceAllString, with `$1`, `${1}` and `${name}`, and Go's rule for empty matches."""
    compiled = _Pattern(pattern, budget)
    template = list(_template(replacement))
    result = bytearray()
    copied = position = 0
    while position <= len(text):
        spans = compiled.search(text, position)
        if spans is None:
            break
        start, end = spans[0]
        result += text[copied:start]
        if end > copied or start == 0:
            for piece in template:
                result += piece if isinstance(piece, bytes) else _named(text, spans, piece, compiled.groups)
                fits(len(result))
            budget.spend(len(template))
        copied = end
        width = character_at(text, position)[1] if position < len(text) else 0
        position = max(position + width, position + 1 if end <= position else 0, end)
    result += text[copied:]
    fits(len(result))
    return bytes(result)


def _matched(text: bytes, spans: list[_Span], group: int) -> bytes:
    if not 0 <= group < len(spans) or spans[group][0] < 0:
        return b""
    return text[spans[group][0] : spans[group][1]]


def _named(text: bytes, spans: list[_Span], name: str, groups: dict[bytes, int]) -> bytes:
    if name.isascii() and name.isdecimal() and len(name) < 9 and (name[0] != "0" or name == "0"):
        return _matched(text, spans, int(name))
    return _matched(text, spans, groups.get(raw(name), -1))


def _template(replacement: bytes) -> Iterator[bytes | str]:
    """Yield the literal bytes and group names of a replacement, like Go's Expand."""
    text = characters(replacement)
    position = 0
    while (dollar := text.find("$", position)) >= 0:
        yield raw(text[position:dollar])
        position = dollar + 1
        if text.startswith("$", position):
            yield b"$"
            position += 1
            continue
        braced = text.startswith("{", position)
        start = end = position + braced
        while end < len(text) and is_word(text[end]):
            end += 1
        if end == start or (braced and not text.startswith("}", end)):
            yield b"$"
            continue
        yield text[start:end]
        position = end + braced
    yield raw(text[position:])
