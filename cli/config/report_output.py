"""The findings of a config file as lines for editors and CI, or as JSON. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rich.text import Text

from cli.config.config_check import FileReport
from cli.lines import Line
from libs.common.cloud_config.model import Finding

COLOURS: Final = {"error": "bold red", "warning": "bold yellow", "differs": "bold cyan"}


def format_report(checked: FileReport, *, differences: bool) -> Iterator[Line]:
    """Yield lines `where: kind: text`: errors, warnings, differences, then a summary."""
    kinds = [("error", checked.mistakes), ("warning", checked.warnings)]
    if differences:
        kinds.append(("differs", checked.differences))
    owner = f"{checked.owner}: " if checked.owner else ""
    for kind, findings in kinds:
        for finding in findings:
            where = f"{checked.source}:{finding.line}" if finding.line else checked.source
            words = owner + _format_finding(finding, checked.rule_name_of(finding))
            yield Line(0, Text.assemble((where, "bold"), ": ", (kind, COLOURS[kind]), f": {words}"))
    if checked.not_checked:
        yield Line(0, Text(f"{checked.source}: {owner}not checked: {checked.not_checked}"))
    yield Line(0, Text(f"{checked.source}: {owner}{_format_summary(checked, differences=differences)}"))


def _format_summary(checked: FileReport, *, differences: bool) -> str:
    counts = [
        _pluralize(len(checked.rules), "rule"),
        _pluralize(len(checked.mistakes), "error"),
        _pluralize(len(checked.warnings), "warning"),
    ]
    if differences:
        differing = _pluralize(len(checked.differences), "difference")
        counts.append(f"{differing} from the reference controller")
    return ", ".join(counts)


def report_to_json(checked: Sequence[FileReport], unreadable: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the JSON document; `usable` says whether a controller accepts the file."""
    files = [
        {
            "file": one.source,
            "object": one.owner,
            "usable": not one.mistakes,
            "errors": _list_findings(one, one.mistakes),
            "warnings": _list_findings(one, one.warnings),
            "differences": _list_findings(one, one.differences),
            "notChecked": one.not_checked,
        }
        for one in checked
    ]
    return {"files": files, "unreadable": [{"file": file, "reason": why} for file, why in unreadable]}


def _list_findings(checked: FileReport, findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "line": finding.line,
            "path": "" if finding.path == "the file" else finding.path.removesuffix(":"),
            "rule": checked.rule_name_of(finding),
            "message": finding.problem,
        }
        for finding in findings
    ]


def _format_finding(finding: Finding, rule: str) -> str:
    path = f"{finding.path} (rule {rule})" if rule else finding.path
    return f"{path} {finding.problem}" if path else finding.problem


def _pluralize(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"
