"""The findings of checks: ok, wrong or unknown, with the observation and the fix. Pure."""

from collections.abc import Generator, Iterable
from typing import Final, Literal

import msgspec

from cli.cluster.unavailable import Unavailable

FindingState = Literal["ok", "wrong", "unknown"]
WORST_FIRST: Final[tuple[FindingState, ...]] = ("wrong", "unknown", "ok")
APPROVAL_OFF: Final = "certificate approval is off (node-csr-approval is not in enabledControllers)"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `seen` and `fix` are sentences; `commands` can be pasted into a shell."""

    state: FindingState
    seen: str
    fix: str | None = None
    commands: tuple[str, ...] = ()

    @classmethod
    def ok(cls, seen: str) -> "Finding":
        """Return a finding with the state ok."""
        return cls(state="ok", seen=seen)

    @classmethod
    def wrong(cls, seen: str, fix: str, *commands: str) -> "Finding":
        """Return a finding with the state wrong and its fix."""
        return cls(state="wrong", seen=seen, fix=fix, commands=commands)

    @classmethod
    def unknown(cls, seen: str, fix: str, *commands: str) -> "Finding":
        """Return a finding with the state unknown and a way to make it known."""
        return cls(state="unknown", seen=seen, fix=fix, commands=commands)

    @classmethod
    def unavailable(cls, seen: str, part: Unavailable) -> "Finding":
        """Return a finding with the state unknown for data that could not be read."""
        return cls.unknown(f"{seen}: {part.explanation}", part.fix, *part.commands)


# The findings of a check that are not ok, and its result: what is ok if there are none.
Check = Generator[Finding, None, str]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings for one question about the installation, and the worst of their states."""

    name: str
    state: FindingState
    asks: str
    findings: tuple[Finding, ...]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one installation, in the order of importance, as in the JSON output."""

    namespace: str
    release: str
    services: tuple[str, ...]
    checks: tuple[CheckReport, ...]

    @property
    def state(self) -> FindingState:
        """Return the worst state of its checks."""
        return find_worst_state(check.state for check in self.checks)

    @property
    def worst_first(self) -> tuple[CheckReport, ...]:
        """Return the checks: wrong, then unknown, then ok; each in the order of importance."""
        return tuple(sorted(self.checks, key=lambda check: WORST_FIRST.index(check.state)))

    @property
    def exit_status(self) -> int:
        """Return 0 if all is ok, 1 if a check is wrong, 2 if none is wrong and one is unknown."""
        return {"ok": 0, "wrong": 1, "unknown": 2}[self.state]


def find_worst_state(states: Iterable[FindingState]) -> FindingState:
    """Return the worst of these states; "ok" if there are none."""
    return min(states, key=WORST_FIRST.index, default="ok")
