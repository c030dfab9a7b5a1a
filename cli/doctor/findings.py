"""What a check found: ok, wrong, or not to be told; with what was seen, and the fix. Pure."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

State = Literal["ok", "wrong", "unknown"]
_WORST_FIRST: Final[tuple[State, ...]] = ("wrong", "unknown", "ok")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing. `seen` and `fix` are sentences; lines of `commands` can be pasted into a shell."""

    state: State
    seen: str
    fix: str = ""
    commands: tuple[str, ...] = ()


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One question about the installation."""

    name: str
    asks: str
    findings: tuple[Finding, ...]

    @property
    def state(self) -> State:
        """The worst of its findings."""
        return worst(finding.state for finding in self.findings)


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All checks, in the order of their importance."""

    checks: tuple[Check, ...]

    @property
    def worst_first(self) -> tuple[Check, ...]:
        """What is wrong, what cannot be told, what is well; each in the order of importance."""
        return tuple(sorted(self.checks, key=lambda check: _WORST_FIRST.index(check.state)))

    @property
    def exit_status(self) -> int:
        """0 all is well, 1 something is wrong, 2 nothing is known to be wrong and not all can be told."""
        return {"ok": 0, "wrong": 1, "unknown": 2}[worst(check.state for check in self.checks)]


def worst(states: Iterable[State]) -> State:
    """Of none it is ok."""
    return min(states, key=_WORST_FIRST.index, default="ok")


def ok(seen: str) -> Finding:
    """All is well."""
    return Finding(state="ok", seen=seen)


def wrong(seen: str, fix: str, *commands: str) -> Finding:
    """Whoever finds something wrong says what to do."""
    return Finding(state="wrong", seen=seen, fix=fix, commands=commands)


def unknown(seen: str, fix: str, *commands: str) -> Finding:
    """Likewise, and what would make it known."""
    return Finding(state="unknown", seen=seen, fix=fix, commands=commands)


def few(names: Iterable[str], most: int = 5) -> str:
    """Names in words, of many only some."""
    listed = sorted(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")
