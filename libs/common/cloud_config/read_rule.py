"""Reads a transformation into a Rule, and validates everything that needs no machine."""

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE
from libs.common.cloud_config.findings import Findings, suggest_name, truncate_line
from libs.common.cloud_config.kubernetes_names import (
    key_problem,
    label_value_problem,
    parse_taint,
    why_reserved,
)
from libs.common.cloud_config.mapping_reader import ParsedMapping
from libs.common.cloud_config.model import (
    Kind,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Operator,
    Rule,
    RuleEntry,
)
from libs.common.cloud_config.selectors import PatternBudget, PatternError, parse_go_integer

_OVERRIDABLE_NAMES: Final = [field.name for field in FIELDS if field.key in OVERRIDABLE]


def read_rule(item: ParsedMapping, findings: Findings, patterns: PatternBudget) -> Rule:
    """Return the rule; report mistakes to `findings`."""
    values = item.values
    features = values.get("features")
    sanitize = values.get("sanitize", False)
    return Rule(
        name=values.get("name", ""),
        index=item.index,
        line=item.line,
        selector=read_selector(item, findings, patterns),
        annotations=_entries("annotations", item, findings, lambda _: ""),
        labels=_entries("labels", item, findings, _any if sanitize else label_value_problem),
        taints=_entries("taints", item, findings, _taint_problem),
        platform_metadata=_overrides(item, findings),
        public_ip_discovery=features.values.get("publicIPDiscovery") if features else None,
        sanitize=sanitize,
    )


# ---- selectors


def read_selector(
    item: ParsedMapping, findings: Findings, patterns: PatternBudget
) -> tuple[NodeSelectorTerm, ...]:
    """Return the nodeSelector of a rule, a pool or an ownership."""
    terms: Iterable[ParsedMapping] = item.values.get("nodeSelector", ())
    return tuple(_term(term, findings, patterns) for term in terms)


def _term(item: ParsedMapping, findings: Findings, patterns: PatternBudget) -> NodeSelectorTerm:
    expressions: Iterable[ParsedMapping] = item.values.get("matchExpressions", ())
    found = [_requirement(each, findings, patterns) for each in expressions]
    return NodeSelectorTerm(requirements=tuple(each for each in found if each is not None))


def _requirement(
    item: ParsedMapping, findings: Findings, patterns: PatternBudget
) -> NodeSelectorRequirement | None:
    given: dict[str, Any] = item.values
    operator = given.get("operator")
    values: tuple[str, ...] = given.get("values", ())
    if operator is not None and (problem := _values_problem(operator, values, patterns)):
        findings.add_mistake(item.line, f"{item.path}.values", problem)
        operator = None
    key = given.get("key")
    if operator is None or key is None:
        return None  # already reported
    return NodeSelectorRequirement(key=key, operator=cast(Operator, operator), values=values, line=item.line)


def _values_problem(operator: str, values: tuple[str, ...], patterns: PatternBudget) -> str:
    match operator:
        case "In" | "NotIn":
            return "" if values else f"must have at least one value for {operator}"
        case "Exists" | "DoesNotExist":
            return f"must have no value for {operator}" if values else ""
        case _ if len(values) != 1:
            return f"must have exactly one value for {operator}"
        case "Regexp":
            return _pattern_problem(values[0], patterns)
        case _:
            whole = parse_go_integer(values[0]) is not None
            return "" if whole else f'must have one integer for {operator}, not "{truncate_line(values[0])}"'


def _pattern_problem(pattern: str, patterns: PatternBudget) -> str:
    try:
        patterns.check(pattern)
    except PatternError as error:
        return f"must have one pattern (RE2, as in Go) for Regexp: {truncate_line(str(error))}"
    return ""


# ---- entries


def _entries(
    kind: Kind, item: ParsedMapping, findings: Findings, value_problem: Callable[[str], str]
) -> tuple[RuleEntry, ...]:
    """Return the entries of that kind; validate the values that are not templates."""
    entries: tuple[RuleEntry, ...] = item.values.get(kind, ())
    for entry in entries:
        at = f'{item.path}.{kind}["{truncate_line(entry.key)}"]'
        if problem := key_problem(entry.key):
            findings.add_mistake(entry.line, at, f"is not a valid key in Kubernetes: {problem}")
        elif why := why_reserved(kind, entry.key):
            findings.add_warning(entry.line, at, f"is skipped: {why}")
        elif "{{" not in entry.template and (problem := value_problem(entry.template)):
            findings.add_mistake(entry.line, at, f'is "{truncate_line(entry.template)}": {problem}')
    return entries


def _any(_: str) -> str:
    return ""


def _taint_problem(text: str) -> str:
    try:
        parse_taint(text)
    except ValueError as error:
        return f"a taint is {error}"
    return ""


def _overrides(item: ParsedMapping, findings: Findings) -> tuple[RuleEntry, ...]:
    """Return the overrides; entries that the reference ignores silently are skipped with a warning."""
    kept: dict[str, RuleEntry] = {}
    entries: Iterable[RuleEntry] = item.values.get("platformMetadata", ())
    for entry in entries:
        at = f'{item.path}.platformMetadata["{truncate_line(entry.key)}"]'
        field = OVERRIDABLE.get(entry.key.lower())
        if why := why_reserved("platformMetadata", entry.key.lower()):
            findings.add_warning(entry.line, at, f"is skipped: {why}")
        elif entry.key.lower() == "tags":
            findings.add_mistake(entry.line, at, "cannot be overridden: it is a mapping")
        elif field is None:
            near = suggest_name(entry.key, _OVERRIDABLE_NAMES)
            findings.add_warning(entry.line, at, f"is skipped: no such metadata can be overridden{near}")
        elif field in kept:
            findings.add_mistake(entry.line, at, "is duplicated in another letter case")
        else:
            kept[field] = RuleEntry(field, entry.template, entry.line)
    return tuple(kept.values())
