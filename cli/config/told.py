"""What was found in a config file, as lines that editors and CI understand, or as JSON. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rich.text import Text

from cli.config.checking import Checked
from cli.lines import Line
from libs.common.cloud_config.model import Finding

COLOURS: Final = {"error": "bold red", "warning": "bold yellow", "differs": "bold cyan"}


def lines(checked: Checked, *, differences: bool) -> Iterator[Line]:
    """`where: kind: words`: errors, then warnings, then what differs from the reference; then how many."""
    kinds = [("error", checked.mistakes), ("warning", checked.warnings)]
    if differences:
        kinds.append(("differs", checked.differences))
    for kind, findings in kinds:
        for finding in findings:
            where = f"{checked.source}:{finding.line}" if finding.line else checked.source
            words = _words(finding, checked.rule_of(finding))
            yield Line(0, Text.assemble((where, "bold"), ": ", (kind, COLOURS[kind]), f": {words}"))
    if checked.not_checked:
        yield Line(0, Text(f"{checked.source}: not checked: {checked.not_checked}"))
    yield Line(0, Text(_summary(checked, differences=differences)))


def _summary(checked: Checked, *, differences: bool) -> str:
    counts = [
        _counted(len(checked.rules), "rule"),
        _counted(len(checked.mistakes), "error"),
        _counted(len(checked.warnings), "warning"),
    ]
    if differences:
        differing = _counted(len(checked.differences), "difference")
        counts.append(f"{differing} from the reference controller")
    return f"{checked.source}: {', '.join(counts)}"


def as_json(checked: Sequence[Checked], unreadable: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """`usable`: whether a controller would take the file."""
    files = [
        {
            "file": one.source,
            "usable": not one.mistakes,
            "errors": _listed(one, one.mistakes),
            "warnings": _listed(one, one.warnings),
            "differences": _listed(one, one.differences),
            "notChecked": one.not_checked,
        }
        for one in checked
    ]
    return {"files": files, "unreadable": [{"file": file, "reason": why} for file, why in unreadable]}


def _listed(checked: Checked, findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "line": finding.line,
            "path": "" if finding.path == "the file" else finding.path.removesuffix(":"),
            "rule": checked.rule_of(finding),
            "message": finding.problem,
        }
        for finding in findings
    ]


def _words(finding: Finding, rule: str) -> str:
    path = f"{finding.path} (rule {rule})" if rule else finding.path
    return f"{path} {finding.problem}" if path else finding.problem


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"
