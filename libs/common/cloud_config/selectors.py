"""Evaluates selectors, with the reason in words. Edge cases follow the reference."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from libs.common.cloud_config.model import NodeSelectorRequirement, NodeSelectorTerm, Operator
from libs.common.cloud_config.patterns import pattern_matches

_GO_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_SHOWN: Final = 64


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
) -> MatchResult:
    """Evaluate a selector by machine facts (`FactValues.texts`) or a Node. One matching term is enough.

    `not_in_matches_absent`: an absent key meets NotIn. Kubernetes evaluates labels so; the reference does
    not evaluate machine facts so.
    """
    if not selector:
        return MatchResult(is_match=True, reason="it has no nodeSelector: every machine matches")
    missed = []
    for number, term in enumerate(selector):
        judged = _judge_term(term, fields, subject_name, not_in_matches_absent)
        if judged.is_match:
            return judged
        missed.append(f"nodeSelector[{number}]: {judged.reason}" if len(selector) > 1 else judged.reason)
    return MatchResult(is_match=False, reason="; ".join(missed))


def parse_go_integer(text: str) -> int | None:
    """Return the number that Go's ParseInt(text, 10, 64) returns; None where it fails."""
    number = int(text) if len(text) <= _SHOWN and _GO_INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _judge_term(
    term: NodeSelectorTerm, fields: Mapping[str, str], whose: str, absent_differs: bool
) -> MatchResult:
    if not term.requirements:
        return MatchResult(is_match=False, reason="empty matchExpressions match nothing")
    met = []
    for requirement in term.requirements:
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
    return _BY_VALUE[requirement.operator](key, text, requirement.values)


def _in(key: str, text: str, values: tuple[str, ...]) -> MatchResult:
    found = text in values
    why = f"{key} is {_quoted(text)}"
    return MatchResult(is_match=found, reason=why if found else f"{why}, not {_one_of(values)}")


def _not_in(key: str, text: str, values: tuple[str, ...]) -> MatchResult:
    found = text in values
    why = f"{key} is {_quoted(text)}"
    rest = "which NotIn excludes" if found else f"not {_one_of(values)}"
    return MatchResult(is_match=not found, reason=f"{why}, {rest}")


def _greater(key: str, text: str, values: tuple[str, ...]) -> MatchResult:
    return _compare(key, text, values[0], lambda number, bound: number > bound, "greater")


def _less(key: str, text: str, values: tuple[str, ...]) -> MatchResult:
    return _compare(key, text, values[0], lambda number, bound: number < bound, "less")


def _compare(key: str, text: str, bound: str, holds: Callable[[int, int], bool], word: str) -> MatchResult:
    number, limit = parse_go_integer(text), parse_go_integer(bound)
    if number is None or limit is None:
        return MatchResult(is_match=False, reason=f"{key} is {_quoted(text)}, which is not an integer")
    held = holds(number, limit)
    return MatchResult(
        is_match=held, reason=f"{key} is {number}, {'' if held else 'not '}{word} than {limit}"
    )


def _found(key: str, text: str, values: tuple[str, ...]) -> MatchResult:
    found = pattern_matches(values[0], text)
    verb = "matches" if found else "does not match"
    return MatchResult(is_match=found, reason=f"{key} is {_quoted(text)}, which {verb} {_shown(values[0])}")


_BY_VALUE: Final[dict[Operator, Callable[[str, str, tuple[str, ...]], MatchResult]]] = {
    "In": _in,
    "NotIn": _not_in,
    "Gt": _greater,
    "Lt": _less,
    "Regexp": _found,
}


def _one_of(values: tuple[str, ...]) -> str:
    if len(values) == 1:
        return _quoted(values[0])
    return "one of " + _shown(", ".join(_quoted(value) for value in values))


def _quoted(text: str) -> str:
    return '"' + _shown(text) + '"'


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
