"""Renders each template of a config file for a sample machine of each platform. Pure."""

from collections.abc import Sequence
from functools import cache

import msgspec

from cli.render.facts_file import load_samples
from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE
from libs.common.cloud_config.findings import truncate_line
from libs.common.cloud_config.model import Kind, Rule, RuleEntry
from libs.common.cloud_config.selectors import match_selector
from libs.gotemplate import Template, TemplateError, parse, render
from services.labeler.core.rules.machine_data import MachineData

_OTHER_DIGITS = str.maketrans("0123456789", "1234567890")
_IDENTITY = ("hostname", "instance_id", "provider_id", "internal_dns", "external_dns")
_GO_NAMES = {OVERRIDABLE[field.key]: field.name for field in FIELDS if field.key in OVERRIDABLE}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a template for one sample."""

    platform: str
    is_match: bool  # whether the rule selects that machine
    text: str = ""
    actions: tuple[tuple[int, int], ...] = ()  # where its actions wrote the text of a providerID
    is_constant: bool = False  # the rule selects a second machine, for which a providerID is the same
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
    def is_provider_id(self) -> bool:
        """Whether it is the providerID under platformMetadata."""
        return (self.kind, self.entry.key) == ("platformMetadata", "provider_id")

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


@cache
def _load_second_machines() -> dict[str, MachineData]:
    """Return another machine of each platform, with other digits in its names, IDs and address."""

    def change(text: str) -> str:
        return text.translate(_OTHER_DIGITS)

    machines = {}
    for platform, node in load_samples().items():
        facts, system = node.facts, node.facts.system
        metadata = {name: change(getattr(facts.platform, name)) for name in _IDENTITY}
        if system is not None:
            system = msgspec.structs.replace(
                system, uuid=change(system.uuid), serial_number=change(system.serial_number)
            )
        machines[platform] = MachineData(
            msgspec.structs.replace(
                facts,
                platform=msgspec.structs.replace(facts.platform, **metadata),
                system=system,
                node_name=change(facts.node_name),
                node_ip=change(facts.node_ip),
            )
        )
    return machines


def run_trials(rules: Sequence[Rule]) -> list[EntryTrials]:
    """Render every entry of every rule for every sample, whether or not the rule matches."""
    done = []
    for rule in rules:
        matched = {
            platform: match_selector(rule.selector, machine.fields.texts).is_match
            for platform, machine in load_sample_machines().items()
        }
        for kind, entry in rule.entries():
            one = EntryTrials(rule=rule, kind=kind, entry=entry)
            try:
                template = parse(entry.template)
            except TemplateError as error:
                done.append(msgspec.structs.replace(one, parse_error=error))
                continue
            trials = tuple(_try_template(one, template, *match) for match in matched.items())
            done.append(msgspec.structs.replace(one, template=template, trials=trials))
    return done


def _try_template(one: EntryTrials, template: Template, platform: str, is_match: bool) -> Trial:
    machine, second = load_sample_machines()[platform], _load_second_machines()[platform]
    trial = Trial(platform=platform, is_match=is_match)
    try:
        if not one.is_provider_id:
            return msgspec.structs.replace(trial, text=render(template, machine.record))
        actions: list[tuple[int, int]] = []
        text = render(template, machine.identity_record, actions=actions)
        selects_both = is_match and match_selector(one.rule.selector, second.fields.texts).is_match
        is_constant = selects_both and "Tags" not in template.fields  # the tags of both are the same
        if is_constant:
            is_constant = render(template, second.identity_record) == text
    except TemplateError as error:
        return msgspec.structs.replace(trial, error=error)
    return msgspec.structs.replace(trial, text=text, actions=tuple(actions), is_constant=is_constant)
