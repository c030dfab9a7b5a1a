"""Effects of rules that the reference controller does not have, because its defects are not copied. Pure.

docs/differences.md explains each.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from cli.config.template_check import (
    EntryTrials,
    find_value_problem,
    format_example,
    format_platforms,
    list_invalid_values,
    load_sample_machines,
)
from libs.common.cloud_config.fact_fields import FIELDS, find_field
from libs.common.cloud_config.findings import Findings, truncate_line
from libs.common.cloud_config.kubernetes_names import why_reserved
from libs.common.cloud_config.model import Rule
from libs.common.cloud_config.selectors import match_selector
from libs.common.contract.platforms import PLATFORMS_WITH_PUBLIC_LINK_ADDRESSES

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
        for line, key, text in _list_rule_differences(rule):
            findings.add_difference(line, f"transformations[{rule.index}].{key}", text)
    for one in entries:
        for text in _list_entry_differences(one):
            findings.add_difference(one.entry.line, one.path, text)


def _list_rule_differences(rule: Rule) -> Iterator[tuple[int, str, str]]:
    """Yield line, key and text of each."""
    for requirement in (each for term in rule.selector for each in term.requirements):
        field = find_field(requirement.key)
        if field is not None and field.in_reference != "selectors and templates":
            text = f'uses "{truncate_line(requirement.key)}", which the reference treats as absent'
            yield requirement.line, "nodeSelector", text
    if rule.sanitize:
        text = "is unknown to the reference: there, such a label blocks the node's initialization permanently"
        yield rule.line, "sanitize", text
    if not rule.public_ip_discovery:
        return
    about = {
        platform
        for platform, machine in load_sample_machines().items()
        if match_selector(rule.selector, machine.fields.texts).is_match
    }
    new = about - PLATFORMS_WITH_PUBLIC_LINK_ADDRESSES
    if about and not new:
        return  # the platform discovers addresses anyway
    where = f" (samples: {format_platforms(sorted(new))})" if new else ""
    text = (
        "takes effect, unlike in the reference: a public address on a link of such a machine "
        f"becomes an ExternalIP of its Node{where}"
    )
    yield rule.line, "features.publicIPDiscovery", text


def _list_entry_differences(one: EntryTrials) -> Iterator[str]:
    if one.template is None:
        return
    for name in sorted(one.template.fields & _OURS):
        yield f"uses .{name}, which the reference does not have: there, the node is not initialized"
    why = why_reserved(one.kind, one.entry.key)
    if why and one.kind in ("labels", "annotations"):
        yield f"is skipped, because {why}; the reference writes it"
    elif "{{" not in one.entry.template:
        return
    elif one.kind == "taints":
        yield _describe_taint(one)
    elif one.kind == "labels" and (skipped := list_invalid_values(one)):
        if not one.rule.sanitize:
            yield (
                f"{format_example([trial for trial, _ in skipped])}: in the reference, such a value blocks "
                "the node's initialization permanently; here, the node is initialized without this label"
            )
    else:
        yield from _list_escapes(one)


def _describe_taint(one: EntryTrials) -> str:
    good = (
        trial.text for trial in one.matching_trials if not trial.error and not find_value_problem(one, trial)
    )
    given = next(good, "")
    example = f', such as "{truncate_line(given)}"' if given else ""
    return (
        f"is the result of its template{example}; the reference writes the template itself, which "
        "Kubernetes rejects, so its nodes have no such taint"
    )


def _list_escapes(one: EntryTrials) -> Iterator[str]:
    """Yield the first result that the reference would escape for HTML."""
    literal = _extract_literal_text(one.entry.template)
    for trial in one.matching_trials:
        made = sorted(c for c in _ESCAPED if trial.text.count(c) > literal.count(c))
        if trial.error is not None or not made:
            continue
        before = f"{', '.join(_ESCAPED[c] for c in made)} for {' '.join(made)}"
        if not literal.strip():
            before = f'"{truncate_line(trial.text.translate(_TABLE))}"'
        yield (
            f'gives "{truncate_line(trial.text)}" for a machine of {trial.platform}; the reference '
            f"escaped it for HTML and wrote {before}"
        )
        return


def _extract_literal_text(template: str) -> str:
    """Return the text outside the template actions."""
    parts = [part.rpartition("}}")[2] for part in template.split("{{")]
    return "".join(parts)
