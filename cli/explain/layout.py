"""The layout of explanations: checks with their results, quoted texts and times. Pure."""

from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
from rich.text import Text

from cli.lines import Line
from services.csr.core.certificate_request import quote_untrusted

CheckOutcome = Literal["passed", "failed", "waits", "unknown"]

_RESULTS: Final[dict[CheckOutcome, str]] = {
    "passed": "green",
    "failed": "red",
    "waits": "yellow",
    "unknown": "cyan",
}
_RESULT, _CHECK = 9, 12  # columns


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


def quote_text(text: str, limit: int = 253) -> str:
    """Return a short plain text as it is, any other text quoted, so that it cannot mislead the reader."""
    return (
        text if text.isascii() and text.isprintable() and len(text) <= limit else quote_untrusted(text, limit)
    )


def format_time(at: datetime | None, now: datetime) -> str:
    """Return a time and its age."""
    if at is None:
        return "time unknown"
    seconds = max(0, int((now - at) / timedelta(seconds=1)))
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{at:%Y-%m-%d %H:%M:%S} UTC, {seconds // size} {unit} ago"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC, {seconds} s ago"
