"""Reads files, checks them, and prints the findings as lines for editors and CI, or as JSON."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from cli.config.chart_values import check_values_file
from cli.config.config_check import FileReport, add_values_file_hint, check_config
from cli.lines import Line, pluralize, print_error, print_json, print_lines
from cli.render.compiled_config import read_input
from libs.common.cloud_config.model import Finding
from libs.common.settings.cloud_config_reloader import UnreadableFile

EXIT_VALID, EXIT_INVALID, EXIT_NOT_CHECKED = 0, 1, 2
_COLORS: Final = {"error": "bold red", "warning": "bold yellow", "differs": "bold cyan"}


def check_files(
    files: Sequence[Path], *, chart_values: bool, as_text: bool, strict: bool, differences: bool
) -> int:
    """Check all files, print the findings and return the exit status."""
    checked: list[FileReport] = []
    unreadable: list[tuple[str, str]] = []
    for path in files:
        source, content = read_input(path)
        if isinstance(content, UnreadableFile):
            unreadable.append((source, content.reason))
        elif chart_values:
            checked += check_values_file(content, source)
        else:
            checked.append(add_values_file_hint(check_config(content, source)))
    if as_text:
        for one in checked:
            print_lines(format_report(one, differences=differences))
        for source, reason in unreadable:
            print_error(f"{source}: cannot be read: {reason}")
    else:
        print_json(report_to_json(checked, unreadable))
    if unreadable:
        return EXIT_NOT_CHECKED
    bad = any(one.mistakes or (strict and one.warnings) for one in checked)
    return EXIT_INVALID if bad else EXIT_VALID


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
            yield Line(0, Text.assemble((where, "bold"), ": ", (kind, _COLORS[kind]), f": {words}"))
    if checked.not_checked:
        yield Line(0, Text(f"{checked.source}: {owner}not checked: {checked.not_checked}"))
    yield Line(0, Text(f"{checked.source}: {owner}{_format_summary(checked, differences=differences)}"))


def _format_summary(checked: FileReport, *, differences: bool) -> str:
    named = {"rule": checked.rules, "error": checked.mistakes, "warning": checked.warnings}
    counts = [pluralize(len(found), name, zero="no") for name, found in named.items()]
    if differences:
        differing = pluralize(len(checked.differences), "difference", zero="no")
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
