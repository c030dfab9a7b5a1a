"""Applies the compiled rules to the facts of one machine and returns their effects, with reasons."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from libs.common.cloud_config.findings import truncate_line
from libs.common.cloud_config.model import Rule
from libs.common.cloud_config.selectors import match_selector
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Taint
from libs.gotemplate import Template, TemplateError
from services.labeler.core.rules.bounds import MAX_ANNOTATIONS, NodeBudget, NodeBudgetExceeded
from services.labeler.core.rules.compilation import CompiledEntry, CompiledRule, Rules
from services.labeler.core.rules.effects import (
    EffectKind,
    EntryResult,
    RetainedKind,
    RuleEffects,
    RuleResult,
)
from services.labeler.core.rules.machine_data import MachineData
from services.labeler.core.rules.value_validation import (
    InvalidValueError,
    make_annotation_value,
    make_label_value,
    make_metadata_value,
    make_taint,
)

Value = str | bool | Taint
_PUBLIC_IP_DISCOVERY: Final[tuple[RetainedKind, str]] = ("feature", "publicIPDiscovery")
_MAX_SELECTOR_REASON: Final = 400  # characters
_MAX_PROBLEM: Final = 600


def apply_rules(rules: Rules, facts: MachineFacts) -> RuleEffects:
    """Return the effects of the rules on the Node of that machine. Never raises, whatever the facts are.

    Every rule reads the facts as Talos reported them, without the overrides of earlier rules. Rules beyond
    MAX_NODE_STEPS are not evaluated.
    """
    if not rules.rules:
        return RuleEffects(platform=facts.platform)
    return _RuleApplication(facts).apply(rules)


class _RuleApplication:
    """The effects of the rules that have been applied so far; a later rule overrides keys of earlier ones."""

    def __init__(self, facts: MachineFacts) -> None:
        self._platform = facts.platform
        self._machine = MachineData(facts)
        self._budget = NodeBudget()
        self._exhausted_by: RuleResult | None = None
        self._values: dict[EffectKind, dict[str, Any]] = {
            "annotation": {}, "label": {}, "taint": {}, "platformMetadata": {},
        }  # fmt: skip
        self._annotation_bytes = 0
        self._retained: set[tuple[RetainedKind, str]] = set()
        self._discovery = False
        self._failures = 0

    def apply(self, rules: Rules) -> RuleEffects:
        """Apply the rules in the order of the file."""
        results = tuple(self._apply_rule(rule) for rule in rules.rules)
        values = self._values
        return RuleEffects(
            labels=values["label"],
            annotations=values["annotation"],
            taints=tuple(values["taint"].values()),
            platform=msgspec.structs.replace(self._platform, **values["platformMetadata"]),
            public_ip_discovery=self._discovery,
            retained=frozenset(self._retained),
            results=results,
            exhausted_by=self._exhausted_by,
            failures=self._failures,
        )

    def _apply_rule(self, compiled: CompiledRule) -> RuleResult:
        rule, fields = compiled.rule, self._machine.fields
        unqueried = [name for name in compiled.queried_fields if name in fields.unqueried]
        if unqueried:
            return self._retain_all(compiled, f"metadata has not queried {', '.join(unqueried)} yet")
        awaited = [name for name in compiled.supplied_fields if name in self._machine.awaited_fields]
        if awaited:
            why = f"no cloud account has supplied {', '.join(awaited)}: {self._machine.why_awaited}"
            return self._retain_all(compiled, truncate_line(why, _MAX_PROBLEM))
        if self._exhausted_by is not None:
            return self._retain_all(compiled, self._exhausted_by.reason)
        try:
            self._budget.spend(1 + len(rule.selector))
            match = match_selector(
                rule.selector, fields.texts, on_requirement=self._budget.spend_on_requirement
            )
            entries = tuple(self._apply_entry(rule, entry) for entry in compiled.entries if match.is_match)
        except NodeBudgetExceeded as error:
            self._failures += 1
            why = f"{error}: neither {rule.title} nor a later rule was evaluated"
            self._exhausted_by = self._retain_all(compiled, why)
            return self._exhausted_by
        if match.is_match and rule.public_ip_discovery is not None:
            self._discovery = rule.public_ip_discovery
            self._retained.discard(_PUBLIC_IP_DISCOVERY)
        reason = truncate_line(match.reason, _MAX_SELECTOR_REASON)
        return RuleResult(
            rule=rule.title, index=rule.index, is_matched=match.is_match, reason=reason, entries=entries
        )

    def _retain_all(self, compiled: CompiledRule, why: str) -> RuleResult:
        """Retain all keys that the rule could have set, so that they stay unchanged."""
        rule = compiled.rule
        for entry in compiled.entries:
            if not entry.rejection:
                self._retain(entry)
        if rule.public_ip_discovery is not None:
            self._retained.add(_PUBLIC_IP_DISCOVERY)
        return RuleResult(rule=rule.title, index=rule.index, is_matched=False, is_evaluated=False, reason=why)

    def _apply_entry(self, rule: Rule, entry: CompiledEntry) -> EntryResult:
        if entry.rejection:
            return _skip(entry, "", entry.rejection)
        actions: list[tuple[int, int]] = []
        try:
            rendered = self._render(entry, actions)
        except TemplateError as error:
            self._failures += 1
            self._retain(entry)
            return _skip(entry, "", f"its template failed: {error}")
        try:
            value = _validate_value(entry, rendered, actions, sanitize=rule.sanitize)
            self._set(entry, value)
        except InvalidValueError as error:
            self._retain(entry)
            problem, uuid = str(error), self._machine.placeholder_uuid
            read = entry.template.fields if isinstance(entry.template, Template) else frozenset()
            if entry.sets_provider_id and uuid and "UUID" in read:
                problem += f"; its UUID {uuid} counts as empty: it is a placeholder of many machines"
            return _skip(entry, rendered, problem)
        shown = value if isinstance(value, str) else rendered
        return EntryResult(kind=entry.kind, key=entry.name, rendered=rendered, value=shown)

    def _render(self, entry: CompiledEntry, actions: list[tuple[int, int]]) -> str:
        if isinstance(entry.template, str):
            self._budget.spend(1)
            return entry.template
        if entry.sets_provider_id:
            return self._budget.render(entry.template, self._machine.identity_record, actions)
        return self._budget.render(entry.template, self._machine.record)

    def _set(self, entry: CompiledEntry, value: Value) -> None:
        """Set the key, over earlier rules. Raises InvalidValueError if annotations exceed MAX_ANNOTATIONS."""
        values, key = self._values[entry.kind], entry.key
        if entry.kind == "annotation":
            assert isinstance(value, str)
            total = self._annotation_bytes + _size(key, value) - _size(key, values.get(key))
            if total > MAX_ANNOTATIONS:
                raise InvalidValueError(
                    f"the annotations of all rules together have more than {MAX_ANNOTATIONS} bytes"
                )
            self._annotation_bytes = total
        values[key] = value
        self._retained.discard((entry.kind, key))

    def _retain(self, entry: CompiledEntry) -> None:
        """Mark the key as not evaluated and drop its value from earlier rules."""
        self._retained.add((entry.kind, entry.key))
        earlier = self._values[entry.kind].pop(entry.key, None)
        if entry.kind == "annotation":
            self._annotation_bytes -= _size(entry.key, earlier)


def _skip(entry: CompiledEntry, rendered: str, problem: str) -> EntryResult:
    problem = truncate_line(problem, _MAX_PROBLEM)
    return EntryResult(kind=entry.kind, key=entry.name, rendered=rendered, problem=problem)


def _size(key: str, value: str | None) -> int:
    return 0 if value is None else len(key) + len(value.encode())


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
