"""Plans spec.providerID: it is immutable, so the labeler writes no preliminary value."""

from typing import Final

from libs.common.cloud_config.fact_fields import FIELDS
from libs.common.contract.instances import build_provider_id, derive_native_provider_id, is_same_instance
from libs.common.contract.machine import (
    MachineFacts,
    PlatformMetadata,
    may_stay_incomplete,
    why_metadata_incomplete,
)
from libs.common.contract.node import Node
from libs.common.contract.node_patch import NodeChanges
from libs.common.contract.platforms import OUR_SCHEME
from libs.gotemplate import Template
from services.labeler.core.blocker import WAITING_FOR_INSTANCE, Notice, block
from services.labeler.core.plan.ownership_record import ManagedFields
from services.labeler.core.plan.plan import PlanInput, PlanPart
from services.labeler.core.rules.compilation import Rules
from services.labeler.core.rules.effects import PROVIDER_ID_KEY, RuleEffects

_CLOUD_FIELDS: Final = tuple(
    field
    for field in FIELDS
    if field.name == "Tags" or (field.in_reference == "selectors and templates" and field.name != "Spot")
)


def plan_provider_id(inputs: PlanInput, node_ip: str) -> PlanPart:
    """Plan the providerID of a Node that has none; report one that differs from that of the machine.

    A fallback providerID contains `node_ip`.
    """
    node, facts, effects = inputs.node, inputs.facts, inputs.effects
    is_set_by_rule = _is_set_by_rule(facts, effects)
    blocker = find_provider_id_blocker(node, facts, effects, inputs.config.rules)
    if node.spec.provider_id:
        source = "a rule says" if is_set_by_rule else "the machine reports"
        mismatch = describe_mismatch(node, effects.platform, source=source)
        notices = (Notice(reason="ProviderIDMismatch", message=mismatch),) if mismatch else ()
        return PlanPart(blocker=blocker, notices=notices)
    provider_id = build_provider_id(effects.platform, node_ip)
    return PlanPart(
        changes=NodeChanges(provider_id=provider_id),
        # Without it, the Node would be another controller's when its rule or account is gone.
        recorded=ManagedFields(provider_id=provider_id if is_set_by_rule or _is_supplied(facts) else ""),
        blocker=blocker or _find_fallback_blocker(inputs),
    )


def find_native_provider_id(
    node: Node, facts: MachineFacts, effects: RuleEffects, rules: Rules
) -> str | Notice:
    """Return the native providerID that a joining Node gets, "" for a fallback, or why none is final yet."""
    blocker = find_provider_id_blocker(node, facts, effects, rules)
    return blocker or derive_native_provider_id(effects.platform)


def find_provider_id_blocker(
    node: Node, facts: MachineFacts, effects: RuleEffects, rules: Rules
) -> Notice | None:
    """Return why the providerID of the Node is not final yet; None if it is, or if the Node has one."""
    if facts.supplement is not None and facts.supplement.why_awaited and not node.spec.provider_id:
        return block(WAITING_FOR_INSTANCE, why=facts.supplement.why_awaited)
    by_rule = _is_set_by_rule(facts, effects) and not _find_missing_fields(rules, facts)
    why = why_metadata_incomplete(facts.platform)
    is_settled = by_rule or may_stay_incomplete(facts, node.metadata.creation_timestamp)
    if why and not (facts.platform.platform and is_settled):
        return block("WaitingForPlatformMetadata", why=why)
    return None if node.spec.provider_id else _find_failed_rule(effects)


def describe_mismatch(node: Node, platform: PlatformMetadata, *, source: str = "the machine reports") -> str:
    """Describe how the Node's providerID differs from the one that `source` gives; "" if it does not."""
    existing, reported = node.spec.provider_id, derive_native_provider_id(platform)
    if not existing or not reported or is_same_instance(existing, reported):
        return ""
    return (
        f"providerID is {existing!r}, but {source} {reported!r}; Kubernetes cannot change it: "
        "controllers that look for the machine by it will not find it until the Node is deleted and its "
        "kubelet restarted"
    )


def _find_fallback_blocker(inputs: PlanInput) -> Notice | None:
    """Return why the Node without a native providerID gets no fallback; None if it gets or needs none."""
    schemes = inputs.config.ownership.provider_id_schemes
    if derive_native_provider_id(inputs.effects.platform) or not schemes:
        return None
    return None if OUR_SCHEME in schemes else block("NativeProviderIDMissing", schemes=" or ".join(schemes))


def _is_set_by_rule(facts: MachineFacts, effects: RuleEffects) -> bool:
    """Return whether rules give a providerID that differs from the machine's own."""
    return effects.platform.provider_id != facts.platform.provider_id


def _is_supplied(facts: MachineFacts) -> bool:
    """Return whether a cloud account supplies the providerID."""
    return facts.supplement is not None and "provider_id" in facts.supplement.fields


def _find_failed_rule(effects: RuleEffects) -> Notice | None:
    """Return the blocker of a rule for the providerID that failed or was not evaluated."""
    if PROVIDER_ID_KEY not in effects.retained:
        return None
    reasons = [
        f"rule {rule!r}: {entry.problem}"
        for rule, entry in effects.list_skipped()
        if (entry.kind, entry.key) == ("platformMetadata", "ProviderID")
    ]
    unevaluated = [f"rule {each.rule!r}: {each.reason}" for each in effects.results if not each.is_evaluated]
    why = "; ".join(reasons or unevaluated) or "its rule could not be evaluated"
    return block("ProviderIDRuleFailed", why=why)


def _find_missing_fields(rules: Rules, facts: MachineFacts) -> tuple[str, ...]:
    """Return the cloud fields that templates of a providerID read and the machine has not reported.

    Until they are reported, the result of these templates is not final.
    """
    templates = (entry.template for rule in rules.rules for entry in rule.entries if entry.sets_provider_id)
    read = {name for template in templates if isinstance(template, Template) for name in template.fields}
    return tuple(field.name for field in _CLOUD_FIELDS if field.name in read and not field.read(facts))
