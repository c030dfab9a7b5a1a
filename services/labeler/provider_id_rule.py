"""Evaluates whether a rule gives the providerID, and whether its result is final."""

from typing import Final

from libs.common.cloud_config.fact_fields import FIELDS
from libs.common.contract.machine import MachineFacts
from libs.gotemplate import Template
from services.labeler.rules import RuleEffects, Rules

_CLOUD_FIELDS: Final = tuple(
    field
    for field in FIELDS
    if field.name == "Tags" or (field.in_reference == "selectors and templates" and field.name != "Spot")
)


def is_set_by_rule(facts: MachineFacts, effects: RuleEffects) -> bool:
    """Return whether rules give a providerID that differs from the machine's own."""
    return effects.platform.provider_id != facts.platform.provider_id


def why_rule_failed(effects: RuleEffects) -> str:
    """Return why a rule for the providerID failed or was not evaluated; "" if none failed."""
    if ("platformMetadata", "provider_id") not in effects.retained:
        return ""
    failed = (each for each in effects.skipped if (each.kind, each.key) == ("platformMetadata", "ProviderID"))
    reasons = [f"rule {each.rule!r}: {each.reason}" for each in failed]
    unevaluated = [f"rule {each.rule!r}: {each.reason}" for each in effects.results if not each.is_evaluated]
    return "; ".join(reasons or unevaluated) or "its rule could not be judged"


def find_missing_fields(rules: Rules, facts: MachineFacts) -> tuple[str, ...]:
    """Return the cloud fields that templates of a providerID read and the machine has not reported.

    Until they are reported, the result of these templates is not final.
    """
    templates = (
        entry.template
        for rule in rules.rules
        for entry in rule.entries
        if (entry.kind, entry.key) == ("platformMetadata", "provider_id")
    )
    read = {name for template in templates if isinstance(template, Template) for name in template.fields}
    return tuple(field.name for field in _CLOUD_FIELDS if field.name in read and not field.read(facts))
