"""Whether a rule is about a machine, and why, in words. The edges are the reference's."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from libs.common.cloud_config.patterns import is_found
from libs.common.cloud_config.rule import Operator, Requirement, Term

_GO_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_SHOWN: Final = 64


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it is, and why."""

    matched: bool
    why: str


def matches(
    selector: Sequence[Term],
    fields: Mapping[str, str],
    *,
    whose: str = "the machine",
    absent_differs: bool = False,
) -> Match:
    """Judge a selector by what a machine says (`RuleFields.texts`), or a Node. Any term suffices.

    `absent_differs`: NotIn is met by what is not there. So Kubernetes judges labels; the reference, facts
    about machines, does not.
    """
    if not selector:
        return Match(matched=True, why="it has no nodeSelector: every machine matches")
    missed = []
    for number, term in enumerate(selector):
        judged = _judge_term(term, fields, whose, absent_differs)
        if judged.matched:
            return judged
        missed.append(f"nodeSelector[{number}]: {judged.why}" if len(selector) > 1 else judged.why)
    return Match(matched=False, why="; ".join(missed))


def go_integer(text: str) -> int | None:
    """The number, as Go's ParseInt(text, 10, 64) reads it; None where that fails."""
    number = int(text) if len(text) <= _SHOWN and _GO_INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _judge_term(term: Term, fields: Mapping[str, str], whose: str, absent_differs: bool) -> Match:
    if not term.requirements:
        return Match(matched=False, why="empty matchExpressions match nothing")
    met = []
    for requirement in term.requirements:
        judged = _judge(requirement, fields, whose, absent_differs)
        if not judged.matched:
            return judged
        met.append(judged.why)
    return Match(matched=True, why=" and ".join(met))


def _judge(requirement: Requirement, fields: Mapping[str, str], whose: str, absent_differs: bool) -> Match:
    text = fields.get(requirement.key)
    key = _shown(requirement.key)
    if requirement.operator in ("Exists", "DoesNotExist"):
        there = text is not None
        says = f"{key} is {_quoted(text)}" if text is not None else f"{whose} has no {key}"
        return Match(matched=there == (requirement.operator == "Exists"), why=says)
    if text is None and absent_differs and requirement.operator == "NotIn":
        return Match(matched=True, why=f"{whose} has no {key}")
    if text is None:  # also for NotIn: what is not there is not known to differ
        return Match(matched=False, why=f"{whose} has no {key}, so {requirement.operator} is not met")
    return _BY_VALUE[requirement.operator](key, text, requirement.values)


def _in(key: str, text: str, values: tuple[str, ...]) -> Match:
    found = text in values
    why = f"{key} is {_quoted(text)}"
    return Match(matched=found, why=why if found else f"{why}, not {_one_of(values)}")


def _not_in(key: str, text: str, values: tuple[str, ...]) -> Match:
    found = text in values
    why = f"{key} is {_quoted(text)}"
    rest = "which NotIn rules out" if found else f"not {_one_of(values)}"
    return Match(matched=not found, why=f"{why}, {rest}")


def _greater(key: str, text: str, values: tuple[str, ...]) -> Match:
    return _compare(key, text, values[0], lambda number, bound: number > bound, "greater")


def _less(key: str, text: str, values: tuple[str, ...]) -> Match:
    return _compare(key, text, values[0], lambda number, bound: number < bound, "less")


def _compare(key: str, text: str, bound: str, holds: Callable[[int, int], bool], word: str) -> Match:
    number, limit = go_integer(text), go_integer(bound)
    if number is None or limit is None:
        return Match(matched=False, why=f"{key} is {_quoted(text)}, which is no integer to compare")
    held = holds(number, limit)
    return Match(matched=held, why=f"{key} is {number}, {'' if held else 'not '}{word} than {limit}")


def _found(key: str, text: str, values: tuple[str, ...]) -> Match:
    found = is_found(values[0], text)
    verb = "matches" if found else "does not match"
    return Match(matched=found, why=f"{key} is {_quoted(text)}, which {verb} {_shown(values[0])}")


_BY_VALUE: Final[dict[Operator, Callable[[str, str, tuple[str, ...]], Match]]] = {
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
