"""Checks a values file of the chart: schema, image, flags and rules. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import yaml

from cli.config import chart_checks
from cli.config.chart_flags import ChartValues, check_flags
from cli.config.chart_schema import CHART, check_schema, make_finding
from cli.config.config_check import FileReport, check_config
from cli.config.values_documents import ValuesDocument, find_values
from libs.common.cloud_config.model import Finding
from libs.common.contract.controllers import select_controllers

_NOT_CHECKED: Final = (
    "files that flags or Secrets refer to, pod settings except memory limits (affinity, tolerations, "
    "...), extraObjects, and whether the image exists"
)


def check_values_file(text: bytes, source: str) -> list[FileReport]:
    """Check the values of each release in a file."""
    return [_check_document(each, source) for each in find_values(text)]


def check_values(text: str | bytes, source: str) -> FileReport:
    """Check a file with the values of one release."""
    [report] = check_values_file(text.encode() if isinstance(text, str) else text, source)
    return report


def _check_document(document: ValuesDocument, source: str) -> FileReport:
    if document.mistakes:
        return FileReport(source=source, owner=document.owner, mistakes=document.mistakes)
    chart = ChartValues(document.values)
    report = _check(chart, source)
    missing: tuple[Finding, ...] = ()
    elsewhere: tuple[str, ...] = document.other_sources
    if not chart.get("image.repository"):
        if document.owner and not document.other_sources:
            missing = (make_finding("image.repository", "is not set, and the chart requires it"),)
        else:  # a values file leaves it to --set or another file
            elsewhere = ("image.repository (required, not set here)", *elsewhere)
    return msgspec.structs.replace(
        report,
        owner=document.owner,
        warnings=(*document.warnings, *missing, *report.warnings),
        not_checked=", ".join((*elsewhere, _NOT_CHECKED)),
    )


def _check(chart: ChartValues, source: str) -> FileReport:
    """Check schema, image, controllers, flags and rules; findings have no lines."""
    schema, rules = check_schema(chart.values), check_config(_extract_cloud_config(chart), source)
    chosen, flags = select_controllers(chart.controllers), check_flags(chart)
    wrong_name = bool(chosen.mistakes)  # reported with the valid names, instead of the schema's pattern
    former = [make_finding("useDaemonSet", "makes the installation fail. Use daemonSet.enabled")]
    return FileReport(
        source=source,
        mistakes=(
            *chart_checks.find_image_mistakes(chart),
            *(former if chart.get("useDaemonSet") else ()),
            *(each for each in schema.mistakes if not (wrong_name and "enabledControllers" in each.path)),
            *chart_checks.report_controllers(chosen.mistakes),
            *chart_checks.find_template_mistakes(chart),
            *flags.mistakes,
            *_clear_lines(rules.mistakes),
        ),
        warnings=(
            *chart_checks.find_image_warnings(chart),
            *schema.warnings,
            *chart_checks.find_low_limits(chart),
            *chart_checks.report_controllers(chosen.warnings),
            *flags.warnings,
            *_clear_lines(rules.warnings),
        ),
        differences=(*chart_checks.find_controller_differences(chart), *_clear_lines(rules.differences)),
        rules=rules.rules,
    )


def _extract_cloud_config(chart: ChartValues) -> str:
    """Return the --cloud-config file that the chart renders; the schema check covers other types and keys."""
    known = CHART["schema"]["properties"]["config"]["properties"]
    config, rules = chart.get("config"), chart.get("transformations")
    given = config.items() if isinstance(config, dict) else ()
    file: dict[str, Any] = {key: value for key, value in given if key in known}
    file["transformations"] = rules if isinstance(rules, list) else []
    text: str = yaml.safe_dump(file, sort_keys=False, allow_unicode=True)
    return text


def _clear_lines(findings: Iterable[Finding]) -> Iterator[Finding]:
    return (msgspec.structs.replace(each, line=0) for each in findings)
