"""The values of a transformation -> a Rule: what can be judged without a machine is judged here."""

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from libs.common.cloud_config.fields import FIELDS, OVERRIDABLE, canonical_key, field_of
from libs.common.cloud_config.findings import Findings, nearest, shown
from libs.common.cloud_config.kubernetes_names import key_problem, label_value_problem, read_taint
from libs.common.cloud_config.patterns import PatternError, Patterns
from libs.common.cloud_config.reading import Item
from libs.common.cloud_config.refused_keys import refused_key
from libs.common.cloud_config.rule import Entry, Kind, Operator, Requirement, Rule, Term
from libs.common.cloud_config.selectors import go_integer
from libs.common.cloud_config.shape import OPERATORS

ReadKey = Callable[[Item, Findings], str]
_KEYS: Final = [f"{field.key}.<name>" if field.is_map else field.key for field in FIELDS]
_OVERRIDABLE_NAMES: Final = [field.name for field in FIELDS if field.key in OVERRIDABLE]


def read_rule(item: Item, findings: Findings, patterns: Patterns) -> Rule:
    """The rule that these values say; mistakes are told to the findings."""
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


def fact_key(item: Item, findings: Findings) -> str:
    """The key of a requirement on a machine, in the spelling of `canonical_key`."""
    key = canonical_key(item.values.get("key", ""))
    if "key" in item.values and field_of(key) is None:
        near = nearest(key, _KEYS)
        what = f'names "{shown(key)}", which no machine has, so it counts as absent everywhere{near}'
        findings.warn(item.line, f"{item.path}.key", what)
    return key


def read_selector(
    item: Item, findings: Findings, patterns: Patterns, read_key: ReadKey = fact_key
) -> tuple[Term, ...]:
    """The nodeSelector of a rule or a pool; with another `read_key`, of what is no machine."""
    terms: Iterable[Item] = item.values.get("nodeSelector", ())
    return tuple(_term(term, findings, patterns, read_key) for term in terms)


def _term(item: Item, findings: Findings, patterns: Patterns, read_key: ReadKey) -> Term:
    said: Iterable[Item] = item.values.get("matchExpressions", ())
    found = [_requirement(each, findings, patterns, read_key) for each in said]
    return Term(requirements=tuple(each for each in found if each is not None), line=item.line)


def _requirement(item: Item, findings: Findings, patterns: Patterns, read_key: ReadKey) -> Requirement | None:
    said: dict[str, Any] = item.values
    operator = said.get("operator")
    values: tuple[str, ...] = said.get("values", ())
    if operator is not None and operator not in OPERATORS:
        near = nearest(operator, OPERATORS)
        what = f'is "{shown(operator)}", not one of {", ".join(OPERATORS)}{near}'
        findings.mistake(item.line, f"{item.path}.operator", what)
        operator = None
    elif operator is not None and (problem := _values_problem(operator, values, patterns)):
        findings.mistake(item.line, f"{item.path}.values", problem)
        operator = None
    key = read_key(item, findings)
    if operator is None or "key" not in said:
        return None  # a mistake, and told
    return Requirement(key=key, operator=cast(Operator, operator), values=values, line=item.line)


def _values_problem(operator: str, values: tuple[str, ...], patterns: Patterns) -> str:
    match operator:
        case "In" | "NotIn":
            return "" if values else f"must hold at least one value for {operator}"
        case "Exists" | "DoesNotExist":
            return f"must hold none for {operator}" if values else ""
        case _ if len(values) != 1:
            return f"must hold exactly one value for {operator}"
        case "Regexp":
            return _pattern_problem(values[0], patterns)
        case _:
            whole = go_integer(values[0]) is not None
            return "" if whole else f'must hold one integer for {operator}, not "{shown(values[0])}"'


def _pattern_problem(pattern: str, patterns: Patterns) -> str:
    try:
        patterns.check(pattern)
    except PatternError as error:
        return f"must hold one pattern (RE2, as in Go) for Regexp: {shown(str(error))}"
    return ""


# ---- what is set


def _entries(
    kind: Kind, item: Item, findings: Findings, value_problem: Callable[[str], str]
) -> tuple[Entry, ...]:
    """The entries of that kind; the values of those that are no templates are judged now."""
    entries: tuple[Entry, ...] = item.values.get(kind, ())
    for entry in entries:
        at = f'{item.path}.{kind}["{shown(entry.key)}"]'
        if problem := key_problem(entry.key):
            findings.mistake(entry.line, at, f"is no key that Kubernetes takes: {problem}")
        elif why := refused_key(kind, entry.key):
            findings.warn(entry.line, at, f"is skipped: {why}")
        elif "{{" not in entry.template and (problem := value_problem(entry.template)):
            findings.mistake(entry.line, at, f'is "{shown(entry.template)}": {problem}')
    return entries


def _any(_: str) -> str:
    return ""


def _taint_problem(text: str) -> str:
    try:
        read_taint(text)
    except ValueError as error:
        return f"a taint is {error}"
    return ""


def _overrides(item: Item, findings: Findings) -> tuple[Entry, ...]:
    """platformMetadata: what the reference passes over in silence is passed over with a warning."""
    kept: dict[str, Entry] = {}
    entries: Iterable[Entry] = item.values.get("platformMetadata", ())
    for entry in entries:
        at = f'{item.path}.platformMetadata["{shown(entry.key)}"]'
        field = OVERRIDABLE.get(entry.key.lower())
        if why := refused_key("platformMetadata", entry.key.lower()):
            findings.warn(entry.line, at, f"is skipped: {why}")
        elif entry.key.lower() == "tags":
            findings.mistake(entry.line, at, "cannot be overridden: it is a mapping")
        elif field is None:
            near = nearest(entry.key, _OVERRIDABLE_NAMES)
            findings.warn(entry.line, at, f"is skipped: there is no such metadata to override{near}")
        elif field in kept:
            findings.mistake(entry.line, at, "is there twice, in another letter case")
        else:
            kept[field] = Entry(field, entry.template, entry.line)
    return tuple(kept.values())
