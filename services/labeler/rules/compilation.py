"""The rules of a file -> Rules: everything done that can be done without a machine."""

from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE
from libs.common.cloud_config.findings import Findings, suggest_name
from libs.common.cloud_config.kubernetes_names import key_problem
from libs.common.cloud_config.model import CloudConfig, Finding, Kind, NodeSelectorTerm, Rule, RuleEntry
from libs.common.cloud_config.required_resources import list_queried_fields
from libs.common.cloud_config.reserved_keys import why_reserved
from libs.gotemplate import Template, TemplateError, parse, record, render
from services.labeler.rules.bounds import MAX_ENTRIES, MAX_RULES
from services.labeler.rules.effects import EffectKind
from services.labeler.rules.selector_cost import SelectorCost, compute_selector_costs

_EFFECT: Final[Mapping[Kind, EffectKind]] = {
    "annotations": "annotation",
    "labels": "label",
    "taints": "taint",
    "platformMetadata": "platformMetadata",
}
_FIELD_NAMES: Final = [field.name for field in FIELDS]
_GO_NAME_BY_FIELD: Final = {
    OVERRIDABLE[field.key]: field.name for field in FIELDS if field.key in OVERRIDABLE
}
_NOTHING: Final = record("Machine", {})


class CompiledEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One key that a rule sets."""

    kind: EffectKind
    key: str  # metadata: the field of PlatformMetadata
    name: str  # what messages call the key; metadata: Go's name
    template: Template | str  # a text is what it gives for every machine
    rejection: str = ""  # why no rule may set that key


class CompiledRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, ready for machines."""

    title: str
    index: int
    selector: tuple[NodeSelectorTerm, ...]
    cost: SelectorCost
    queried_fields: tuple[str, ...]  # Go's names of the fields that it needs and that not every look asks for
    entries: tuple[CompiledEntry, ...]  # in the order in which they are applied
    public_ip_discovery: bool | None
    sanitize: bool


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a file's rules say, ready for machines."""

    rules: tuple[CompiledRule, ...] = ()
    warnings: tuple[Finding, ...] = ()  # templates that read what no machine has


NO_RULES: Final = Rules()


class RulesError(Exception):
    """The rules cannot be used."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings: Final = findings
        self.mistakes: Final = [
            _format_finding(finding) for finding in findings
        ]  # one sentence each, with its line
        super().__init__("; ".join(self.mistakes))


def compile_rules(config: CloudConfig) -> Rules:
    """The rules of a file, their templates parsed. Raises RulesError with every mistake.

    Takes some ms for a usual file. One of nothing but costly patterns takes seconds: call it in a thread.
    """
    if mistake := _check_limits(config.rules):
        raise RulesError((mistake,))
    findings = Findings()
    parsed: dict[str, Template | str] = {}  # many rules of a file repeat one another's templates
    costs = compute_selector_costs(config.rules)
    rules = tuple(
        _compile_rule(rule, cost, parsed, findings) for rule, cost in zip(config.rules, costs, strict=True)
    )
    if findings.mistakes:
        raise RulesError(findings.mistakes)
    return Rules(rules=rules, warnings=findings.warnings)


def collect_findings(error: CloudConfigError) -> tuple[Finding, ...]:
    """Why a file cannot be used: what its reader has found, and its templates."""
    try:
        compile_rules(error.read or CloudConfig())
    except RulesError as also:
        found = dict.fromkeys((*error.findings, *also.findings))
        return tuple(sorted(found, key=lambda finding: finding.line))
    return error.findings


def _check_limits(rules: tuple[Rule, ...]) -> Finding | None:
    if len(rules) > MAX_RULES:
        return Finding(
            line=rules[MAX_RULES].line, path="the file", problem=f"has more than {MAX_RULES} rules"
        )
    entries = 0
    for rule in rules:
        entries += len(rule.entries())
        if entries > MAX_ENTRIES:
            problem = f"has more than {MAX_ENTRIES} keys in its rules"
            return Finding(line=rule.line, path="the file", problem=problem)
    return None


def _compile_rule(
    rule: Rule, cost: SelectorCost, parsed: dict[str, Template | str], findings: Findings
) -> CompiledRule:
    entries = (_compile_entry(rule, kind, entry, parsed, findings) for kind, entry in rule.entries())
    return CompiledRule(
        title=rule.title,
        index=rule.index,
        selector=rule.selector,
        cost=cost,
        queried_fields=tuple(field.name for field in list_queried_fields(rule)),
        entries=tuple(entry for entry in entries if entry is not None),
        public_ip_discovery=rule.public_ip_discovery,
        sanitize=rule.sanitize,
    )


def _compile_entry(
    rule: Rule, kind: Kind, entry: RuleEntry, parsed: dict[str, Template | str], findings: Findings
) -> CompiledEntry | None:
    name = _GO_NAME_BY_FIELD.get(entry.key, entry.key) if kind == "platformMetadata" else entry.key
    at = f'transformations[{rule.index}].{kind}["{name}"]'
    try:
        template = parsed.get(entry.template)
        if template is None:
            template = parsed[entry.template] = _parse_template(entry.template)
    except TemplateError as error:
        findings.add_mistake(entry.line, at, f"is no template that can be used: {error}")
        return None
    if isinstance(template, Template):
        for unknown in sorted(template.fields.difference(_FIELD_NAMES)):
            what = f"reads .{unknown}, which no machine has: it fails where it comes to that"
            findings.add_warning(entry.line, at, what + suggest_name(unknown, _FIELD_NAMES))
    return CompiledEntry(
        kind=_EFFECT[kind],
        key=entry.key,
        name=name,
        template=template,
        rejection=_find_rejection(kind, entry.key),
    )


def _parse_template(source: str) -> Template | str:
    template = parse(source)
    return template if "{{" in source else render(template, _NOTHING)


def _find_rejection(kind: Kind, key: str) -> str:
    """Why the key cannot be set by a rule; the reader of the file has refused most of these."""
    if kind == "platformMetadata":
        return "" if key in _GO_NAME_BY_FIELD else "there is no such metadata to override"
    return why_reserved(kind, key) or key_problem(key)


def _format_finding(finding: Finding) -> str:
    where = f"line {finding.line}: " if finding.line else ""
    return f"{where}{finding.path} {finding.problem}"
