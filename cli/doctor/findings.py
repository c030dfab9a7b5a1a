"""The findings of checks: ok, wrong or unknown, with the observation and the fix; and their text. Pure."""

from collections.abc import Generator, Iterable, Iterator
from typing import Final, Literal

import msgspec
from rich.text import Text

from cli.cluster.unavailable import Unavailable
from cli.doctor.snapshot import InstallationSnapshot
from cli.lines import Line

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


_STATES: Final[dict[FindingState, tuple[str, str]]] = {
    "ok": ("ok", "green"),
    "wrong": ("WRONG", "bold red"),
    "unknown": ("?", "yellow"),
}
_COLUMN: Final = 7


def format_diagnosis(diagnosis: Diagnosis, where: str) -> Iterator[Line]:
    """Yield the lines: wrong checks first, then unknown ones, then ok."""
    yield Line(0, Text(where, style="bold"))
    before: FindingState | None = None
    for check in diagnosis.worst_first:
        if check.state != "ok" or before != "ok":
            yield Line(0, Text())
        yield from _format_check(check)
        before = check.state
    yield Line(0, Text())
    yield Line(0, Text(_format_summary(diagnosis), style=_STATES[diagnosis.state][1]))


def format_location(seen: InstallationSnapshot) -> str:
    """Return the installation and its services, as the heading."""
    installation = seen.installation
    services = ", ".join(installation.services)
    beside = "".join(
        f"; other installations: --namespace {other.namespace} --release {other.release}"
        for other in seen.others
    )
    head = f"Release {installation.release or '(none)'} in namespace {installation.namespace}"
    return f"{head}: {services}{beside}"


def _format_check(check: CheckReport) -> Iterator[Line]:
    word, style = _STATES[check.state]
    label = Text(f"{word:<{_COLUMN}}", style=style)
    if check.state == "ok":
        seen = "; ".join(finding.seen for finding in check.findings)
        yield Line(0, Text.assemble((check.name, "bold"), f": {seen}"), label)
        return
    yield Line(0, Text.assemble((check.name, "bold"), (f"  {check.asks}", "dim")), label)
    for finding in check.findings:
        yield from _format_finding(finding)


def _format_finding(finding: Finding) -> Iterator[Line]:
    word, style = _STATES[finding.state]
    yield Line(
        _COLUMN, Text(finding.seen), Text(f"{word} ", style=style) if finding.state == "ok" else Text()
    )
    if finding.fix:
        yield Line(_COLUMN, Text(finding.fix), Text("fix: ", style="bold"))
    for command in finding.commands:
        yield Line(_COLUMN + 5, Text(command, style="cyan"), is_unbroken=True)


def _format_summary(diagnosis: Diagnosis) -> str:
    counts = {state: sum(check.state == state for check in diagnosis.checks) for state in _STATES}
    return f"{counts['ok']} ok, {counts['wrong']} wrong, {counts['unknown']} unknown"
