"""The result of a check: ok, wrong or unknown, with the observation and the fix. Pure."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

CheckState = Literal["ok", "wrong", "unknown"]
_WORST_FIRST: Final[tuple[CheckState, ...]] = ("wrong", "unknown", "ok")


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `observation` and `fix` are sentences; `commands` can be pasted into a shell."""

    state: CheckState
    observation: str
    fix: str = ""
    commands: tuple[str, ...] = ()


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings for one question about the installation."""

    name: str
    question: str
    findings: tuple[CheckFinding, ...]

    @property
    def state(self) -> CheckState:
        """Return the worst state of its findings."""
        return find_worst_state(finding.state for finding in self.findings)


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All checks, in the order of importance."""

    checks: tuple[CheckReport, ...]

    @property
    def worst_first(self) -> tuple[CheckReport, ...]:
        """Return the checks: wrong, then unknown, then ok; each in the order of importance."""
        return tuple(sorted(self.checks, key=lambda check: _WORST_FIRST.index(check.state)))

    @property
    def exit_status(self) -> int:
        """Return 0 if all is ok, 1 if a check is wrong, 2 if none is wrong and one is unknown."""
        return {"ok": 0, "wrong": 1, "unknown": 2}[find_worst_state(check.state for check in self.checks)]


def find_worst_state(states: Iterable[CheckState]) -> CheckState:
    """Return the worst of these states; "ok" if there are none."""
    return min(states, key=_WORST_FIRST.index, default="ok")
