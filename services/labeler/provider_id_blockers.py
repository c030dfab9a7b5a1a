"""Finds the blockers of a Node without a providerID; it is immutable, so a wrong one is permanent."""

from libs.common.cloud_config.model import Ownership
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.platforms import OUR_SCHEME
from services.labeler.blocker import (
    Blocker,
    block_on_failed_provider_id_rule,
    block_on_incomplete_metadata,
    block_on_missing_native_provider_id,
)
from services.labeler.provider_id import derive_native_provider_id, why_pending
from services.labeler.provider_id_rule import find_missing_fields, is_set_by_rule, why_rule_failed
from services.labeler.rules import RuleEffects, Rules


def find_provider_id_blocker(
    node: Node, facts: MachineFacts, effects: RuleEffects, rules: Rules
) -> Blocker | None:
    """Return why the providerID of the Node is not final yet; None if it is, or if the Node has one."""
    by_rule = is_set_by_rule(facts, effects) and not find_missing_fields(rules, facts)
    pending = why_pending(node, facts, is_set_by_rule=by_rule)
    if pending:
        return block_on_incomplete_metadata(pending)
    failed = "" if node.spec.provider_id else why_rule_failed(effects)
    return block_on_failed_provider_id_rule(failed) if failed else None


def find_fallback_blocker(node: Node, effects: RuleEffects, ownership: Ownership) -> Blocker | None:
    """Return why the Node without a native providerID gets no fallback; None if it gets or needs none."""
    schemes = ownership.provider_id_schemes
    if node.spec.provider_id or derive_native_provider_id(effects.platform) or not schemes:
        return None
    return None if OUR_SCHEME in schemes else block_on_missing_native_provider_id(schemes)
