"""What a reading finds: mistakes, warnings, differences to the reference; a bounded number of each."""

import difflib
from collections.abc import Sequence
from typing import Final

from libs.common.cloud_config.model import Finding

_MOST: Final = 100
_SHOWN: Final = 60


class Findings:
    """Collects while a file is read."""

    def __init__(self) -> None:
        self._mistakes: list[Finding] = []
        self._warnings: list[Finding] = []
        self._differences: list[Finding] = []

    def add_mistake(self, line: int, path: str, problem: str) -> None:
        """The file cannot be used."""
        _append(self._mistakes, line, path, problem)

    def add_warning(self, line: int, path: str, problem: str) -> None:
        """The file can be used, and something in it has no effect."""
        _append(self._warnings, line, path, problem)

    def add_difference(self, line: int, path: str, problem: str) -> None:
        """Something acts that does not in the reference."""
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


def truncate_line(text: str) -> str:
    """The text, or its beginning, in one line."""
    line = text[: _SHOWN + 1]
    if not line.isprintable():
        line = "".join(each if each.isprintable() else " " for each in line)
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def suggest_name(written: str, known: Sequence[str]) -> str:
    """A question after the known name that was probably meant; "" where there is none near."""
    by_case = {name.lower(): name for name in known}
    found = difflib.get_close_matches(written.lower()[:_SHOWN], by_case, n=1, cutoff=0.7)
    return f"; did you mean {by_case[found[0]]}?" if found else ""


def _append(findings: list[Finding], line: int, path: str, problem: str) -> None:
    if len(findings) < _MOST:
        findings.append(Finding(line=line, path=path or "the file", problem=problem))
    elif len(findings) == _MOST:
        findings.append(Finding(line=line, path="the file", problem="has more than is listed here"))


def _in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: finding.line))
