"""Compiles the rules of a file: everything that does not depend on a machine."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE, SUPPLIED_FIELDS, list_queried_fields
from libs.common.cloud_config.findings import Findings, suggest_name
from libs.common.cloud_config.kubernetes_names import why_reserved
from libs.common.cloud_config.model import CloudConfig, Finding, Kind, NodeSelectorTerm, Rule, RuleEntry
from libs.gotemplate import Template, TemplateError, parse, record, render
from services.labeler.core.rules.bounds import MAX_ENTRIES, MAX_RULES
from services.labeler.core.rules.effects import PROVIDER_ID_KEY, EffectKind

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
    key: str  # for metadata, the field of PlatformMetadata
    name: str  # the key's name in messages; for metadata, Go's name
    template: Template | str  # str: the result is the same for every machine
    rejection: str  # why no rule may set this key, "" if one may

    @property
    def sets_provider_id(self) -> bool:
        """Return whether the rule sets the providerID, which is immutable."""
        return (self.kind, self.key) == PROVIDER_ID_KEY


class CompiledRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that can be applied to machines."""

    rule: Rule
    queried_fields: tuple[str, ...]  # Go's names of the fields that it needs and not every poll requests
    supplied_fields: tuple[str, ...]  # those that it needs and a cloud account may supply
    entries: tuple[CompiledEntry, ...]  # in order of application


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The compiled rules of a file, and warnings about them."""

    rules: tuple[CompiledRule, ...] = ()
    warnings: tuple[Finding, ...] = ()  # templates that read unknown fields


NO_RULES: Final = Rules()


class RulesError(Exception):
    """The rules contain mistakes."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings: Final = findings
        super().__init__("; ".join(f"line {each.line}: {each.path} {each.problem}" for each in findings))


def compile_rules(config: CloudConfig) -> Rules:
    """Compile the rules of a file and parse their templates. Raises RulesError with every mistake.

    A usual file takes some ms, a megabyte of templates a second: call this in a thread.
    """
    if mistake := _check_limits(config.rules):
        raise RulesError((mistake,))
    findings = Findings()
    parsed: dict[str, Template | str] = {}  # by source: many rules of a file contain the same templates
    rules = tuple(_compile_rule(rule, parsed, findings) for rule in config.rules)
    if findings.mistakes:
        raise RulesError(findings.mistakes)
    return Rules(rules=rules, warnings=findings.warnings)


def select_provider_id_rules(rules: Rules) -> Rules:
    """Return the rules that set a providerID, without their other keys."""
    selected = ((rule, tuple(each for each in rule.entries if each.sets_provider_id)) for rule in rules.rules)
    return Rules(rules=tuple(msgspec.structs.replace(rule, entries=of) for rule, of in selected if of))


def collect_findings(error: CloudConfigError) -> tuple[Finding, ...]:
    """Return all mistakes of an invalid file, by line: those of the reader and those of the rules."""
    try:
        compile_rules(error.read or CloudConfig())
    except RulesError as rules_error:
        found = dict.fromkeys((*error.findings, *rules_error.findings))
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


def _compile_rule(rule: Rule, parsed: dict[str, Template | str], findings: Findings) -> CompiledRule:
    compiled = (_compile_entry(rule, kind, entry, parsed, findings) for kind, entry in rule.entries())
    entries = tuple(entry for entry in compiled if entry is not None)
    return CompiledRule(
        rule=rule,
        queried_fields=tuple(field.name for field in list_queried_fields(rule)),
        supplied_fields=_list_supplied_fields(rule.selector, entries),
        entries=entries,
    )


def _list_supplied_fields(
    selector: Sequence[NodeSelectorTerm], entries: Sequence[CompiledEntry]
) -> tuple[str, ...]:
    keys = {requirement.key for term in selector for requirement in term.requirements}
    templates = (entry.template for entry in entries if isinstance(entry.template, Template))
    read = frozenset[str]().union(*(template.fields for template in templates))
    return tuple(name for name in SUPPLIED_FIELDS if name in read or name.lower() in keys)


def _compile_entry(
    rule: Rule, kind: Kind, entry: RuleEntry, parsed: dict[str, Template | str], findings: Findings
) -> CompiledEntry | None:
    name = _GO_NAME_BY_FIELD[entry.key] if kind == "platformMetadata" else entry.key
    at = f'transformations[{rule.index}].{kind}["{name}"]'
    try:
        template = parsed.get(entry.template)
        if template is None:
            template = parsed[entry.template] = _parse_template(entry.template)
    except TemplateError as error:
        findings.add_mistake(entry.line, at, f"is not a valid template: {error}")
        return None
    if isinstance(template, Template):
        for unknown in sorted(template.fields.difference(_FIELD_NAMES)):
            what = f"reads .{unknown}, which no machine has: the template fails when it reads this field"
            findings.add_warning(entry.line, at, what + suggest_name(unknown, _FIELD_NAMES))
    return CompiledEntry(
        kind=_EFFECT[kind],
        key=entry.key,
        name=name,
        template=template,
        rejection=why_reserved(kind, entry.key),
    )


def _parse_template(source: str) -> Template | str:
    template = parse(source)
    return template if "{{" in source else render(template, _NOTHING)
