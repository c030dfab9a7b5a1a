"""Builds the findings of checks. Pure."""

from collections.abc import Iterable

from cli.cluster.unavailable import Unavailable
from cli.doctor.check_report import CheckFinding


def report_ok(seen: str) -> CheckFinding:
    """Return a finding with the state ok."""
    return CheckFinding(state="ok", observation=seen)


def report_wrong(seen: str, fix: str, *commands: str) -> CheckFinding:
    """Return a finding with the state wrong and its fix."""
    return CheckFinding(state="wrong", observation=seen, fix=fix, commands=commands)


def report_unknown(seen: str, fix: str, *commands: str) -> CheckFinding:
    """Return a finding with the state unknown and a way to make it known."""
    return CheckFinding(state="unknown", observation=seen, fix=fix, commands=commands)


def report_unavailable(problem: str, told: Unavailable) -> CheckFinding:
    """Return a finding with the state unknown for data that could not be read."""
    return CheckFinding(
        state="unknown",
        observation=f"{problem}: {told.reason}",
        fix=told.fix,
        commands=told.commands,
    )


def format_names(names: Iterable[str], most: int = 5) -> str:
    """Return the names as text; of more than `most`, the rest is only counted."""
    listed = sorted(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")
