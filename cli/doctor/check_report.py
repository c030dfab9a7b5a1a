"""What a check found: ok, wrong, or not to be told; with what was seen, and the fix. Pure."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

CheckState = Literal["ok", "wrong", "unknown"]
_WORST_FIRST: Final[tuple[CheckState, ...]] = ("wrong", "unknown", "ok")


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing. `seen` and `fix` are sentences; lines of `commands` can be pasted into a shell."""

    state: CheckState
    observation: str
    fix: str = ""
    commands: tuple[str, ...] = ()


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """One question about the installation."""

    name: str
    question: str
    findings: tuple[CheckFinding, ...]

    @property
    def state(self) -> CheckState:
        """The worst of its findings."""
        return find_worst_state(finding.state for finding in self.findings)


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All checks, in the order of their importance."""

    checks: tuple[CheckReport, ...]

    @property
    def worst_first(self) -> tuple[CheckReport, ...]:
        """What is wrong, what cannot be told, what is well; each in the order of importance."""
        return tuple(sorted(self.checks, key=lambda check: _WORST_FIRST.index(check.state)))

    @property
    def exit_status(self) -> int:
        """0 all is well, 1 something is wrong, 2 nothing is known to be wrong and not all can be told."""
        return {"ok": 0, "wrong": 1, "unknown": 2}[find_worst_state(check.state for check in self.checks)]


def find_worst_state(states: Iterable[CheckState]) -> CheckState:
    """Of none it is ok."""
    return min(states, key=_WORST_FIRST.index, default="ok")


def report_ok(seen: str) -> CheckFinding:
    """All is well."""
    return CheckFinding(state="ok", observation=seen)


def report_wrong(seen: str, fix: str, *commands: str) -> CheckFinding:
    """Whoever finds something wrong says what to do."""
    return CheckFinding(state="wrong", observation=seen, fix=fix, commands=commands)


def report_unknown(seen: str, fix: str, *commands: str) -> CheckFinding:
    """Likewise, and what would make it known."""
    return CheckFinding(state="unknown", observation=seen, fix=fix, commands=commands)


def format_names(names: Iterable[str], most: int = 5) -> str:
    """Names in words, of many only some."""
    listed = sorted(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")
