"""Collects mistakes, warnings and differences to the reference; a limited number of each."""

import difflib
from collections.abc import Sequence
from typing import Final

from libs.common.cloud_config.model import Finding

_MOST: Final = 100
_SHOWN: Final = 60


class Findings:
    """The findings of one file."""

    def __init__(self) -> None:
        self._mistakes: list[Finding] = []
        self._warnings: list[Finding] = []
        self._differences: list[Finding] = []

    def add_mistake(self, line: int, path: str, problem: str) -> None:
        """Add a mistake: the file cannot be used."""
        _append(self._mistakes, line, path, problem)

    def add_warning(self, line: int, path: str, problem: str, *, is_unknown_fact: bool = False) -> None:
        """Add a warning: a setting has no effect."""
        _append(self._warnings, line, path, problem, is_unknown_fact=is_unknown_fact)

    def add_difference(self, line: int, path: str, problem: str) -> None:
        """Add a difference: a setting has an effect that it lacks in the reference."""
        _append(self._differences, line, path, problem)

    @property
    def mistakes(self) -> tuple[Finding, ...]:
        return _in_order(self._mistakes)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return _in_order(self._warnings)

    @property
    def differences(self) -> tuple[Finding, ...]:
        return _in_order(self._differences)


def truncate_line(text: str, max_length: int = _SHOWN) -> str:
    """Return the text, or its beginning, in one line, with a space for each unprintable character."""
    line = "".join(each if each.isprintable() else " " for each in text[: max_length + 1])
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def suggest_name(written: str, known: Sequence[str], *, prefix: str = "") -> str:
    """Return a hint with the known name that is nearest; "" without one.

    `prefix` begins the written and all known names, and is part of neither here.
    """
    by_case = {name.lower(): name for name in known}
    found = difflib.get_close_matches(written.lower()[:_SHOWN], by_case, n=1, cutoff=0.7)
    return f"; did you mean {prefix}{by_case[found[0]]}?" if found else ""


def _append(
    findings: list[Finding], line: int, path: str, problem: str, *, is_unknown_fact: bool = False
) -> None:
    if len(findings) < _MOST:
        path = path or "the file"
        findings.append(Finding(line=line, path=path, problem=problem, is_unknown_fact=is_unknown_fact))
    elif len(findings) == _MOST:
        more = "has further findings, which are not listed"
        findings.append(Finding(line=line, path="the file", problem=more))


def _in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: finding.line))
