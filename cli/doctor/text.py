"""The diagnosis as text: the same on a terminal and in a pipe, except for line breaks. Pure."""

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from cli.doctor.findings import CheckReport, Diagnosis, Finding, FindingState
from cli.doctor.snapshot import InstallationSnapshot
from cli.lines import Line

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
    if installation.assumed_reason:
        return f"Namespace {installation.namespace}, assumed from the chart: {services}"
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
