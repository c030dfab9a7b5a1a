"""The layout of explanations: problems, checks with their results, quoted texts and times. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec
from rich.text import Text

from cli.lines import Line, format_age, format_field
from services.csr.core.certificate_request import quote_untrusted

CheckOutcome = Literal["passed", "failed", "waits", "unknown"]

_RESULTS: Final[dict[CheckOutcome, str]] = {
    "passed": "green",
    "failed": "red",
    "waits": "yellow",
    "unknown": "cyan",
}
_RESULT, _CHECK = 9, 12  # columns
_LONGEST: Final = 1200  # maximum characters of a text from outside


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of an object: what it is, or what it lacks, why, and what ends it."""

    what: str
    cause: str
    fix: str


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one check."""

    name: str
    result: CheckOutcome
    text: str
    nodes: tuple[str, ...] = ()  # Nodes whose change can resolve it
    rivals: tuple[str, ...] = ()


def format_check(check: CheckResult) -> Line:
    """Return a line with result, name and text of a check."""
    label = Text.assemble((f"{check.result:<{_RESULT}}", _RESULTS[check.result]), f"{check.name:<{_CHECK}}")
    return Line(2, Text(check.text), label)


def format_findings(findings: Sequence[Finding]) -> Iterator[Line]:
    """Yield cause and fix of each problem, and the effect of each but the first, which the heading has."""
    for number, finding in enumerate(findings):
        if number:
            yield format_field("Also", finding.what, "red")
        yield format_field("Cause", quote(finding.cause))
        yield format_field("Fix", quote(finding.fix), "bold")


def format_title(text: str) -> Line:
    """Return the title of a section."""
    return Line(0, Text(text, style="bold"))


def quote(text: str, limit: int = _LONGEST) -> str:
    """Return a short plain text as it is, any other text quoted, so that it cannot mislead the reader."""
    return (
        text if text.isascii() and text.isprintable() and len(text) <= limit else quote_untrusted(text, limit)
    )


def format_time(at: datetime | None, now: datetime) -> str:
    """Return a time and its age."""
    if at is None:
        return "time unknown"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC, {format_age((now - at).total_seconds())} ago"
