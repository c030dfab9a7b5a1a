"""Rules and what a machine says -> what the Node should have, and why."""

from typing import Final

from libs.common.cloud_config.selectors import matches
from libs.common.machine import MachineFacts
from services.labeler.rules.bounds import NodeBudget, NodeBudgetExceeded
from services.labeler.rules.compiling import CompiledEntry, CompiledRule, Rules
from services.labeler.rules.effects import EntryTold, RuleEffects, RuleTold
from services.labeler.rules.judging import Unfit, annotation_value, label_value, metadata_value, taint_of
from services.labeler.rules.machine_data import MachineData
from services.labeler.rules.outcome import Outcome, Value, in_one_line
from services.labeler.templates import TemplateError

_WHY: Final = 400  # characters of a selector's reasons


def apply_rules(rules: Rules, facts: MachineFacts) -> RuleEffects:
    """What the rules want of the Node of that machine. Never raises, whatever the machine says.

    Every rule sees the machine as Talos reported it, not as an earlier rule overrode it. At most
    MAX_NODE_STEPS are spent; rules beyond that are not judged.
    """
    if not rules.rules:
        return RuleEffects(platform=facts.platform)
    application = _Application(MachineData(facts))
    told = tuple(application.rule(rule) for rule in rules.rules)
    return application.outcome.effects(facts.platform, told)


class _Application:
    """The state of applying all rules to one machine."""

    def __init__(self, machine: MachineData) -> None:
        self._machine = machine
        self._budget = NodeBudget()
        self._exhausted = ""  # why no further rule is judged
        self.outcome = Outcome()

    def rule(self, rule: CompiledRule) -> RuleTold:
        """Apply one rule, after all before it."""
        fields = self._machine.fields
        unasked = [name for name in rule.asked if name in fields.unasked]
        if unasked:
            return self._unjudged(rule, f"Talos has not been asked yet for {', '.join(unasked)}")
        if self._exhausted:
            return self._unjudged(rule, self._exhausted)
        try:
            self._budget.spend(rule.cost.steps_for(fields.texts))
        except NodeBudgetExceeded as error:
            return self._stop(rule, error)
        match = matches(rule.selector, fields.texts)
        why = in_one_line(match.why, _WHY)
        if not match.matched:
            return RuleTold(rule=rule.title, index=rule.index, matched=False, why=why)
        try:
            entries = tuple(self._entry(rule, entry) for entry in rule.entries)
        except NodeBudgetExceeded as error:
            return self._stop(rule, error)
        if rule.public_ip_discovery is not None:
            self.outcome.discover(rule.public_ip_discovery)
        return RuleTold(rule=rule.title, index=rule.index, matched=True, why=why, entries=entries)

    def _stop(self, rule: CompiledRule, error: NodeBudgetExceeded) -> RuleTold:
        self._exhausted = f"{error}: {rule.title} is the first that was not judged, and none after it was"
        self.outcome.failures += 1
        self.outcome.skip(rule.title, None, "", "", self._exhausted)
        return self._unjudged(rule, self._exhausted)

    def _unjudged(self, rule: CompiledRule, why: str) -> RuleTold:
        """Whatever the rule could have set stays as it is."""
        for entry in rule.entries:
            if not entry.refused:
                self.outcome.retain(entry.kind, entry.key)
        if rule.public_ip_discovery is not None:
            self.outcome.retain("feature", "publicIPDiscovery")
        return RuleTold(rule=rule.title, index=rule.index, matched=False, judged=False, why=why)

    def _entry(self, rule: CompiledRule, entry: CompiledEntry) -> EntryTold:
        if entry.refused:
            return self._skipped(rule, entry, "", entry.refused)
        try:
            rendered = self._rendered(entry)
        except TemplateError as error:
            self.outcome.failures += 1
            self.outcome.retain(entry.kind, entry.key)
            return self._skipped(rule, entry, "", f"its template failed: {error}")
        try:
            value = _judged(entry, rendered, sanitize=rule.sanitize)
            self.outcome.want(entry.kind, entry.key, value)
        except Unfit as unfit:
            self.outcome.retain(entry.kind, entry.key)
            return self._skipped(rule, entry, rendered, str(unfit))
        shown = value if isinstance(value, str) else rendered
        return EntryTold(kind=entry.kind, key=entry.name, rendered=rendered, value=shown)

    def _rendered(self, entry: CompiledEntry) -> str:
        if isinstance(entry.template, str):
            self._budget.spend(1)
            return entry.template
        return self._budget.render(entry.template, self._machine.record)

    def _skipped(self, rule: CompiledRule, entry: CompiledEntry, rendered: str, problem: str) -> EntryTold:
        self.outcome.skip(rule.title, entry.kind, entry.name, rendered, problem)
        problem = in_one_line(problem, _WHY)
        return EntryTold(kind=entry.kind, key=entry.name, rendered=rendered, problem=problem)


def _judged(entry: CompiledEntry, text: str, *, sanitize: bool) -> Value:
    match entry.kind:
        case "label":
            return label_value(text, sanitize=sanitize)
        case "annotation":
            return annotation_value(text)
        case "taint":
            return taint_of(entry.key, text)
        case _:
            return metadata_value(entry.key, text, sanitize=sanitize)
