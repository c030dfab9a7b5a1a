"""Renders each template of a config file for a sample machine of each platform. Pure."""

from collections.abc import Sequence
from functools import cache

import msgspec

from cli.render.samples import load_samples
from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE
from libs.common.cloud_config.findings import truncate_line
from libs.common.cloud_config.model import Kind, Rule, RuleEntry
from libs.common.cloud_config.selectors import match_selector
from libs.gotemplate import Template, TemplateError, parse, render
from services.labeler.rules.machine_data import MachineData

_GO_NAMES = {OVERRIDABLE[field.key]: field.name for field in FIELDS if field.key in OVERRIDABLE}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a template for one sample."""

    platform: str
    is_match: bool  # whether the rule selects that machine
    text: str = ""
    error: TemplateError | None = None


class EntryTrials(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a rule and its results."""

    rule: Rule
    kind: Kind
    entry: RuleEntry
    template: Template | None = None  # None for a plain text, and for an invalid template
    parse_error: TemplateError | None = None  # why the template is invalid
    trials: tuple[Trial, ...] = ()

    @property
    def path(self) -> str:
        key = _GO_NAMES.get(self.entry.key, self.entry.key) if self.kind == "platformMetadata" else ""
        return f'transformations[{self.rule.index}].{self.kind}["{truncate_line(key or self.entry.key)}"]'

    @property
    def matching_trials(self) -> tuple[Trial, ...]:
        """Return the trials on machines that the rule selects."""
        return tuple(trial for trial in self.trials if trial.is_match)


@cache
def load_sample_machines() -> dict[str, MachineData]:
    """Return the data of each platform's sample as rules see it."""
    return {platform: MachineData(node.facts) for platform, node in load_samples().items()}


def run_trials(rules: Sequence[Rule]) -> list[EntryTrials]:
    """Render every entry of every rule for every sample, whether or not the rule matches."""
    machines = load_sample_machines()
    matched = {
        (rule.index, platform): match_selector(rule.selector, machine.fields.texts).is_match
        for rule in rules
        for platform, machine in machines.items()
    }
    done = []
    for rule in rules:
        for kind, entry in rule.entries():
            one = EntryTrials(rule=rule, kind=kind, entry=entry)
            try:
                template = parse(entry.template)
            except TemplateError as error:
                done.append(msgspec.structs.replace(one, parse_error=error))
                continue
            found = []
            for platform, machine in machines.items():
                trial = Trial(platform=platform, is_match=matched[rule.index, platform])
                try:
                    found.append(msgspec.structs.replace(trial, text=render(template, machine.record)))
                except TemplateError as error:
                    found.append(msgspec.structs.replace(trial, error=error))
            done.append(msgspec.structs.replace(one, template=template, trials=tuple(found)))
    return done
