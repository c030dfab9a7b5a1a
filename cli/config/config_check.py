"""Checks the text of a config file before a cluster uses it. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from cli.config.differences import report_differences
from cli.config.template_check import check_entry, run_trials
from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.findings import Findings, truncate_line
from libs.common.cloud_config.model import CloudConfig, Finding
from services.labeler.core.rules.compilation import RulesError, compile_rules

_OF_OBJECT: Final = 'has no key "apiVersion"'
_OBJECT_HINT: Final = (
    "this looks like a Kubernetes object. If it is a HelmRelease or an Application: add --chart-values. If "
    "it is a ConfigMap: give the text of its key"
)
_OF_VALUES: Final = ('has no key "image"', 'has no key "replicaCount"')


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one file, each kind ordered by line."""

    source: str
    owner: str = ""  # the object in the file that has the values, such as "HelmRelease kube-system/ccm"
    mistakes: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    differences: tuple[Finding, ...] = ()
    rules: tuple[str, ...] = ()  # their names; "" for an unnamed one
    not_checked: str = ""  # the parts that were not checked

    def rule_name_of(self, finding: Finding) -> str:
        """Return the name of the rule that the finding concerns; "" without one."""
        head, _, rest = finding.path.partition("[")
        number = rest.partition("]")[0]
        is_rule = head == "transformations" and number.isdecimal() and int(number) < len(self.rules)
        return truncate_line(self.rules[int(number)]) if is_rule else ""


def check_config(text: str | bytes, source: str) -> FileReport:
    """Check syntax, the templates on samples, and the differences from the reference."""
    mistakes: tuple[Finding, ...] = ()
    try:
        config = parse_cloud_config(text, source)
    except CloudConfigError as error:
        mistakes = error.findings
        config = error.read or CloudConfig()
    # A controller starts with such a selector, as the reference does, but it is a mistake of the file.
    unknown_facts = tuple(each for each in config.warnings if each.is_unknown_fact)
    warnings = tuple(each for each in config.warnings if not each.is_unknown_fact)
    findings = Findings()
    beyond = _find_exceeded_limits(config)
    entries = [] if beyond else run_trials(config.rules)
    for one in entries:
        check_entry(one, findings)
    report_differences(config.rules, entries, findings)
    names = {rule.index: rule.name for rule in config.rules}
    return FileReport(
        source=source,
        mistakes=_sort_by_line(mistakes, (*beyond, *unknown_facts, *findings.mistakes)),
        warnings=_sort_by_line(warnings, findings.warnings),
        differences=_sort_by_line(config.differences, findings.differences),
        rules=tuple(names.get(index, "") for index in range(max(names, default=-1) + 1)),
    )


def add_values_file_hint(checked: FileReport) -> FileReport:
    """Add a first finding if the file looks like values of the chart, or like an object that has them."""
    problems = [each.problem for each in checked.mistakes if each.path == "the file"]
    if any(problem.startswith(_OF_OBJECT) for problem in problems):  # its other keys are no mistakes
        others = (each for each in checked.mistakes if each.path != "the file")
        return msgspec.structs.replace(checked, mistakes=(Finding(problem=_OBJECT_HINT), *others))
    if any(problem.startswith(_OF_VALUES) for problem in problems):
        hint = Finding(problem="this looks like a values file of the chart: add --chart-values")
        return msgspec.structs.replace(checked, mistakes=(hint, *checked.mistakes))
    return checked


def _find_exceeded_limits(config: CloudConfig) -> tuple[Finding, ...]:
    """Return limits for which the labeler rejects all rules; templates are checked elsewhere."""
    try:
        compile_rules(config)
    except RulesError as error:
        return tuple(found for found in error.findings if not found.path.startswith("transformations"))
    return ()


def _sort_by_line(one: Sequence[Finding], other: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted((*one, *other), key=lambda finding: finding.line))
