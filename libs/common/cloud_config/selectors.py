"""Evaluates selectors and their patterns (RE2), with the reason in words. Edge cases follow the reference."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from libs.common.cloud_config.model import NodeSelectorRequirement, NodeSelectorTerm, Operator

# ---- patterns: RE2, as in Go, with linear time for any pattern

_MOST_CHARACTERS: Final = 10_000
_MOST_MEMORY: Final = 2 << 20  # bytes per pattern, program and cache
_PATTERN_CACHE_SIZE: Final = 128  # compiled patterns; with more of them, each machine causes compilations
# For all patterns of a file: RE2 needs 0.35 s to compile a million, and a service with a hundred patterns
# such as \pL{100} needs twice the memory that the chart requests.
_MOST_INSTRUCTIONS: Final = 2_000_000
_TOO_LARGE: Final = "pattern too large"  # RE2's message
_TOO_LARGE_COST: Final = 40_000  # the cost of detecting it
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
            self._left -= _TOO_LARGE_COST if str(error).startswith(_TOO_LARGE) else 0
            raise
        self._left -= count_instructions(pattern)


def pattern_matches(pattern: str, text: str) -> bool:
    """Return whether a checked pattern matches anywhere in the text."""
    return _compiled(pattern).search(text.encode(errors="replace")) is not None


def count_instructions(pattern: str) -> int:
    """Return the size of a checked pattern, compiled. A search costs at most that times the text."""
    return int(_compiled(pattern).programsize)


@lru_cache(maxsize=_PATTERN_CACHE_SIZE)
def _compiled(pattern: str) -> Any:
    import re2  # noqa: PLC0415 - as above

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    return re2.compile(pattern.encode(errors="replace"), options)


# ---- selectors

_GO_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_SHOWN: Final = 64

# Receives each requirement before it is evaluated, with the text of its key; None: it has none.
RequirementHook = Callable[[NodeSelectorRequirement, str | None], None]


class MatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a selector matches, and why."""

    is_match: bool
    reason: str


def match_selector(
    selector: Sequence[NodeSelectorTerm],
    fields: Mapping[str, str],
    *,
    subject_name: str = "the machine",
    not_in_matches_absent: bool = False,
    on_requirement: RequirementHook = lambda requirement, text: None,
) -> MatchResult:
    """Evaluate a selector by machine facts (`FactValues.texts`) or a Node. One matching term is enough.

    `not_in_matches_absent`: an absent key meets NotIn. Kubernetes evaluates labels so; the reference does
    not evaluate machine facts so. An exception of `on_requirement` ends the evaluation.
    """
    if not selector:
        return MatchResult(is_match=True, reason="it has no nodeSelector: every machine matches")
    missed = []
    for number, term in enumerate(selector):
        judged = _judge_term(term, fields, subject_name, not_in_matches_absent, on_requirement)
        if judged.is_match:
            return judged
        missed.append(f"nodeSelector[{number}]: {judged.reason}" if len(selector) > 1 else judged.reason)
    return MatchResult(is_match=False, reason="; ".join(missed))


def parse_go_integer(text: str) -> int | None:
    """Return the number that Go's ParseInt(text, 10, 64) returns; None where it fails."""
    number = int(text) if len(text) <= _SHOWN and _GO_INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _judge_term(
    term: NodeSelectorTerm,
    fields: Mapping[str, str],
    whose: str,
    absent_differs: bool,
    on_requirement: RequirementHook,
) -> MatchResult:
    if not term.requirements:
        return MatchResult(is_match=False, reason="empty matchExpressions match nothing")
    met = []
    for requirement in term.requirements:
        on_requirement(requirement, fields.get(requirement.key))
        judged = _judge(requirement, fields, whose, absent_differs)
        if not judged.is_match:
            return judged
        met.append(judged.reason)
    return MatchResult(is_match=True, reason=" and ".join(met))


def _judge(
    requirement: NodeSelectorRequirement, fields: Mapping[str, str], whose: str, absent_differs: bool
) -> MatchResult:
    text = fields.get(requirement.key)
    key = _shown(requirement.key)
    if requirement.operator in ("Exists", "DoesNotExist"):
        there = text is not None
        says = f"{key} is {_quoted(text)}" if text is not None else f"{whose} has no {key}"
        return MatchResult(is_match=there == (requirement.operator == "Exists"), reason=says)
    if text is None and absent_differs and requirement.operator == "NotIn":
        return MatchResult(is_match=True, reason=f"{whose} has no {key}")
    if text is None:  # also for NotIn: an absent fact may have any value
        return MatchResult(
            is_match=False, reason=f"{whose} has no {key}, so {requirement.operator} is not met"
        )
    return _compare_value(requirement.operator, key, text, requirement.values)


def _compare_value(operator: Operator, key: str, text: str, values: tuple[str, ...]) -> MatchResult:
    why = f"{key} is {_quoted(text)}"
    match operator:
        case "In":
            found = text in values
            return MatchResult(is_match=found, reason=why if found else f"{why}, not {_one_of(values)}")
        case "NotIn":
            found = text in values
            rest = "which NotIn excludes" if found else f"not {_one_of(values)}"
            return MatchResult(is_match=not found, reason=f"{why}, {rest}")
        case "Regexp":
            found = pattern_matches(values[0], text)
            verb = "matches" if found else "does not match"
            return MatchResult(is_match=found, reason=f"{why}, which {verb} {_shown(values[0])}")
        case _:
            number, limit = parse_go_integer(text), parse_go_integer(values[0])
            if number is None or limit is None:
                return MatchResult(is_match=False, reason=f"{why}, which is not an integer")
            held = number > limit if operator == "Gt" else number < limit
            comparison = f"{'' if held else 'not '}{'greater' if operator == 'Gt' else 'less'}"
            return MatchResult(is_match=held, reason=f"{key} is {number}, {comparison} than {limit}")


def _one_of(values: tuple[str, ...]) -> str:
    if len(values) == 1:
        return _quoted(values[0])
    return "one of " + _shown(", ".join(_quoted(value) for value in values))


def _quoted(text: str) -> str:
    return '"' + _shown(text) + '"'


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
