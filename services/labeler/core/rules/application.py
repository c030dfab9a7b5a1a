"""Applies the compiled rules to the facts of one machine and returns their effects, with reasons."""

from collections.abc import Sequence
from typing import Final

from libs.common.cloud_config.findings import truncate_line
from libs.common.cloud_config.selectors import match_selector
from libs.common.contract.machine import MachineFacts
from libs.gotemplate import Template, TemplateError
from services.labeler.core.rules.bounds import NodeBudget, NodeBudgetExceeded
from services.labeler.core.rules.compilation import CompiledEntry, CompiledRule, Rules
from services.labeler.core.rules.effect_collector import EffectCollector, Value
from services.labeler.core.rules.effects import EntryResult, RuleEffects, RuleResult
from services.labeler.core.rules.machine_data import MachineData
from services.labeler.core.rules.value_validation import (
    InvalidValueError,
    make_annotation_value,
    make_label_value,
    make_metadata_value,
    make_taint,
)

_MAX_REASON_LENGTH: Final = 400  # characters of a selector's reasons


def apply_rules(rules: Rules, facts: MachineFacts) -> RuleEffects:
    """Return the effects of the rules on the Node of that machine. Never raises, whatever the facts are.

    Every rule reads the facts as Talos reported them, without the overrides of earlier rules. Rules beyond
    MAX_NODE_STEPS are not evaluated.
    """
    if not rules.rules:
        return RuleEffects(platform=facts.platform)
    application = _RuleApplication(MachineData(facts))
    results = tuple(application.apply_rule(rule) for rule in rules.rules)
    return application.collector.build_effects(facts.platform, results)


class _RuleApplication:
    """The state of applying all rules to one machine."""

    def __init__(self, machine: MachineData) -> None:
        self._machine = machine
        self._budget = NodeBudget()
        self._exhausted = ""  # why no further rule is evaluated
        self.collector = EffectCollector()

    def apply_rule(self, rule: CompiledRule) -> RuleResult:
        """Apply one rule and return its result; call it in the order of the file."""
        fields = self._machine.fields
        unqueried = [name for name in rule.queried_fields if name in fields.unqueried]
        if unqueried:
            return self._retain_all(rule, f"metadata has not queried {', '.join(unqueried)} yet")
        if self._exhausted:
            return self._retain_all(rule, self._exhausted)
        try:
            self._budget.spend(rule.cost.steps_for(fields.texts))
        except NodeBudgetExceeded as error:
            return self._stop_evaluation(rule, error)
        match = match_selector(rule.selector, fields.texts)
        why = truncate_line(match.reason, _MAX_REASON_LENGTH)
        if not match.is_match:
            return RuleResult(rule=rule.title, index=rule.index, is_matched=False, reason=why)
        try:
            entries = tuple(self._apply_entry(rule, entry) for entry in rule.entries)
        except NodeBudgetExceeded as error:
            return self._stop_evaluation(rule, error)
        if rule.public_ip_discovery is not None:
            self.collector.set_public_ip_discovery(rule.public_ip_discovery)
        return RuleResult(rule=rule.title, index=rule.index, is_matched=True, reason=why, entries=entries)

    def _stop_evaluation(self, rule: CompiledRule, error: NodeBudgetExceeded) -> RuleResult:
        self._exhausted = f"{error}: neither {rule.title} nor a later rule was evaluated"
        self.collector.failures += 1
        self.collector.skip(rule.title, None, "", "", self._exhausted)
        return self._retain_all(rule, self._exhausted)

    def _retain_all(self, rule: CompiledRule, why: str) -> RuleResult:
        """Retain all keys that the rule could have set, so that they stay unchanged."""
        for entry in rule.entries:
            if not entry.rejection:
                self.collector.retain(entry.kind, entry.key)
        if rule.public_ip_discovery is not None:
            self.collector.retain("feature", "publicIPDiscovery")
        return RuleResult(rule=rule.title, index=rule.index, is_matched=False, is_evaluated=False, reason=why)

    def _apply_entry(self, rule: CompiledRule, entry: CompiledEntry) -> EntryResult:
        if entry.rejection:
            return self._skip_entry(rule, entry, "", entry.rejection)
        actions: list[tuple[int, int]] = []
        try:
            rendered = self._render_entry(entry, actions)
        except TemplateError as error:
            self.collector.failures += 1
            self.collector.retain(entry.kind, entry.key)
            return self._skip_entry(rule, entry, "", f"its template failed: {error}")
        try:
            value = _validate_value(entry, rendered, actions, sanitize=rule.sanitize)
            self.collector.set_value(entry.kind, entry.key, value)
        except InvalidValueError as error:
            self.collector.retain(entry.kind, entry.key)
            problem, uuid = str(error), self._machine.placeholder_uuid
            read = entry.template.fields if isinstance(entry.template, Template) else frozenset()
            if entry.sets_provider_id and uuid and "UUID" in read:
                problem += f"; its UUID {uuid} counts as empty: it is a placeholder of many machines"
            return self._skip_entry(rule, entry, rendered, problem)
        shown = value if isinstance(value, str) else rendered
        return EntryResult(kind=entry.kind, key=entry.name, rendered=rendered, value=shown)

    def _render_entry(self, entry: CompiledEntry, actions: list[tuple[int, int]]) -> str:
        if isinstance(entry.template, str):
            self._budget.spend(1)
            return entry.template
        if entry.sets_provider_id:
            return self._budget.render(entry.template, self._machine.identity_record, actions)
        return self._budget.render(entry.template, self._machine.record)

    def _skip_entry(
        self, rule: CompiledRule, entry: CompiledEntry, rendered: str, problem: str
    ) -> EntryResult:
        self.collector.skip(rule.title, entry.kind, entry.name, rendered, problem)
        problem = truncate_line(problem, _MAX_REASON_LENGTH)
        return EntryResult(kind=entry.kind, key=entry.name, rendered=rendered, problem=problem)


def _validate_value(
    entry: CompiledEntry, text: str, actions: Sequence[tuple[int, int]], *, sanitize: bool
) -> Value:
    match entry.kind:
        case "label":
            return make_label_value(text, sanitize=sanitize)
        case "annotation":
            return make_annotation_value(text)
        case "taint":
            return make_taint(entry.key, text)
        case _:
            return make_metadata_value(entry.key, text, sanitize=sanitize, actions=actions)
