"""Effects of rules that the reference controller does not have, because its defects are not copied. Pure.

docs/differences.md explains each.
"""

from collections.abc import Sequence
from typing import Final

from cli.config.template_check import (
    find_value_problem,
    format_example,
    format_platforms,
    list_invalid_values,
)
from cli.config.template_trials import EntryTrials, load_sample_machines
from libs.common.cloud_config.fact_fields import FIELDS, find_field
from libs.common.cloud_config.findings import Findings, truncate_line
from libs.common.cloud_config.model import Rule
from libs.common.cloud_config.reserved_keys import why_reserved
from libs.common.cloud_config.selectors import match_selector
from libs.common.contract.platforms import PLATFORMS_WITH_PUBLIC_LINK_ADDRESSES
from libs.gotemplate.functions import OWN_FUNCTIONS

_ESCAPED: Final = {"&": "&amp;", "+": "&#43;", "'": "&#39;", '"': "&#34;", "<": "&lt;", ">": "&gt;"}
_TABLE: Final = str.maketrans(_ESCAPED)
_IN_TEMPLATES_OF_REFERENCE: Final = frozenset(field.name for field in FIELDS if field.in_reference)
_OURS: Final = frozenset(field.name for field in FIELDS) - _IN_TEMPLATES_OF_REFERENCE
_CONTINUOUS: Final = (
    "sets values that are kept current for the lifetime of a node: they change with the rule "
    "and the machine, and a removed rule removes its labels, annotations and taints. The "
    "reference keeps them permanently, and never changes zone, region, instance type or taints "
    "of an initialized node. Changes by a person or another controller remain"
)


def report_differences(rules: Sequence[Rule], entries: Sequence[EntryTrials], findings: Findings) -> None:
    """Report each different effect at its line."""
    if rules:
        findings.add_difference(0, "", _CONTINUOUS)
    for rule in rules:
        _report_rule(rule, findings)
    for one in entries:
        if one.template is not None:
            _report_entry(one, findings)


def _report_rule(rule: Rule, findings: Findings) -> None:
    path = f"transformations[{rule.index}]"
    for term in rule.selector:
        for requirement in term.requirements:
            field = find_field(requirement.key)
            if field is not None and field.in_reference != "selectors and templates":
                told = f'uses "{truncate_line(requirement.key)}", which the reference treats as absent'
                findings.add_difference(requirement.line, f"{path}.nodeSelector", told)
    if rule.sanitize:
        told = "is unknown to the reference: there, such a label blocks the node's initialization permanently"
        findings.add_difference(rule.line, f"{path}.sanitize", told)
    if rule.public_ip_discovery:
        _report_discovery(rule, f"{path}.features.publicIPDiscovery", findings)


def _report_discovery(rule: Rule, path: str, findings: Findings) -> None:
    about = {
        platform
        for platform, machine in load_sample_machines().items()
        if match_selector(rule.selector, machine.fields.texts).is_match
    }
    new = about - PLATFORMS_WITH_PUBLIC_LINK_ADDRESSES
    if about and not new:
        return  # the platform discovers addresses anyway
    where = f" (samples: {format_platforms(sorted(new))})" if new else ""
    told = (
        "takes effect, unlike in the reference: a public address on a link of such a machine "
        f"becomes an ExternalIP of its Node{where}"
    )
    findings.add_difference(rule.line, path, told)


def _report_entry(one: EntryTrials, findings: Findings) -> None:
    assert one.template is not None
    for name in sorted(one.template.fields & _OURS):
        told = f"uses .{name}, which the reference does not have: there, the node is not initialized"
        findings.add_difference(one.entry.line, one.path, told)
    for name in sorted(one.template.functions & OWN_FUNCTIONS):
        told = f"calls {name}, which the reference does not have: there, the node is not initialized"
        findings.add_difference(one.entry.line, one.path, told)
    why = why_reserved(one.kind, one.entry.key)
    if why and one.kind in ("labels", "annotations"):
        findings.add_difference(
            one.entry.line, one.path, f"is skipped, because {why}; the reference writes it"
        )
        return
    if "{{" not in one.entry.template:
        return
    if one.kind == "taints":
        _report_taint(one, findings)
        return
    if one.kind == "labels" and (skipped := list_invalid_values(one)):
        told = (
            f"{format_example([trial for trial, _ in skipped])}: in the reference, such a value blocks "
            "the node's initialization permanently; here, the node is initialized without this label"
        )
        if not one.rule.sanitize:
            findings.add_difference(one.entry.line, one.path, told)
    else:
        _report_escapes(one, findings)


def _report_taint(one: EntryTrials, findings: Findings) -> None:
    good = (
        trial.text for trial in one.matching_trials if not trial.error and not find_value_problem(one, trial)
    )
    given = next(good, "")
    example = f', such as "{truncate_line(given)}"' if given else ""
    told = (
        f"is the result of its template{example}; the reference writes the template itself, which "
        "Kubernetes rejects, so its nodes have no such taint"
    )
    findings.add_difference(one.entry.line, one.path, told)


def _report_escapes(one: EntryTrials, findings: Findings) -> None:
    literal = _extract_literal_text(one.entry.template)
    for trial in one.matching_trials:
        made = sorted(c for c in _ESCAPED if trial.text.count(c) > literal.count(c))
        if trial.error is not None or not made:
            continue
        was = trial.text.translate(_TABLE) if not literal.strip() else ""
        before = (
            f'"{truncate_line(was)}"'
            if was
            else f"{', '.join(_ESCAPED[c] for c in made)} for {' '.join(made)}"
        )
        told = (
            f'gives "{truncate_line(trial.text)}" for a machine of {trial.platform}; the reference '
            "escaped it for "
            f"HTML and wrote {before}"
        )
        findings.add_difference(one.entry.line, one.path, told)
        return


def _extract_literal_text(template: str) -> str:
    """Return the text outside the template actions."""
    parts = [part.rpartition("}}")[2] for part in template.split("{{")]
    return "".join(parts)
