"""Why no providerID is written on a Node that has none: what is written stays for ever."""

from libs.common.cloud_config.rule import Ownership
from libs.common.machine import MachineFacts
from libs.common.node import Node
from libs.common.platforms import OUR_SCHEME
from services.labeler.blocked import (
    Blocked,
    by_native_format,
    by_rule_without_provider_id,
    by_waiting_for_metadata,
)
from services.labeler.provider_id import reported_provider_id, why_not_yet
from services.labeler.provider_id_rule import given_by_rule, unsaid_by, why_not_given
from services.labeler.rules import RuleEffects, Rules


def unknown_provider_id(
    node: Node, facts: MachineFacts, effects: RuleEffects, rules: Rules
) -> Blocked | None:
    """Why it cannot be told which one it will get, None if it can, or it has one."""
    by_rule = given_by_rule(facts, effects) and not unsaid_by(rules, facts)
    waiting = why_not_yet(node, facts, by_rule=by_rule)
    if waiting:
        return by_waiting_for_metadata(waiting)
    failed = "" if node.spec.provider_id else why_not_given(effects)
    return by_rule_without_provider_id(failed) if failed else None


def unwritten_fallback(node: Node, effects: RuleEffects, ownership: Ownership) -> Blocked | None:
    """Why it does not get ours, though nobody gives it another; None if it does, or needs none."""
    schemes = ownership.provider_id_schemes
    if node.spec.provider_id or reported_provider_id(effects.platform) or not schemes:
        return None
    return None if OUR_SCHEME in schemes else by_native_format(schemes)
