"""Tries each template of a config file on a sample machine of each platform, and checks the results. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final

import msgspec

from cli.lines import shorten
from cli.render.facts_file import load_samples
from libs.common.cloud_config.fact_fields import FIELDS, OVERRIDABLE
from libs.common.cloud_config.findings import Findings, suggest_name, truncate_line
from libs.common.cloud_config.kubernetes_names import label_value_problem, why_reserved
from libs.common.cloud_config.model import Kind, Rule, RuleEntry
from libs.common.cloud_config.selectors import match_selector
from libs.gotemplate import Template, TemplateError, parse, render
from services.labeler.core.rules.machine_data import MachineData
from services.labeler.core.rules.value_validation import (
    InvalidValueError,
    make_annotation_value,
    make_metadata_value,
    make_taint,
)

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
        if (one.kind, one.entry.key) != ("platformMetadata", "provider_id"):
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


_NAMES: Final = [field.name for field in FIELDS]
# Wrong on any machine, even if some samples do not reach that part of the template.
_OF_THE_TEMPLATE: Final = (
    "wrong number of args", "wrong type for value", "can't evaluate field", "not support",
)  # fmt: skip


def check_entry(one: EntryTrials, findings: Findings) -> None:
    """Report the problems of one entry."""
    for is_mistake, text in _list_problems(one):
        (findings.add_mistake if is_mistake else findings.add_warning)(one.entry.line, one.path, text)


def _list_problems(one: EntryTrials) -> Iterator[tuple[bool, str]]:
    """Yield each problem, and whether it is a mistake or a warning."""
    if one.parse_error is not None:
        yield True, f"is not a valid template: {_describe_error(one.parse_error, one.entry.template)}"
        return
    unknown = sorted(one.template.fields - set(_NAMES)) if one.template else []
    for name in unknown:
        yield True, f"uses .{truncate_line(name)}, which no machine has{suggest_name(name, _NAMES)}"
    if not unknown:
        yield from _list_errors(one)
    if not why_reserved(one.kind, one.entry.key):  # already reported
        yield from ((False, text) for text in _list_invalid_results(one))
    constant = [trial for trial in one.trials if trial.is_constant and not find_value_problem(one, trial)]
    if constant:
        text = f"{format_example(constant)}, and the same for every other such machine that the rule selects"
        yield False, f"{text}: only one Node can have a providerID, and the others stay uninitialized"


def find_value_problem(one: EntryTrials, trial: Trial) -> str:
    """Return why the result of the template is not written; "" if it is."""
    text = trial.text
    if one.kind == "labels":
        return label_value_problem(text)
    try:
        match one.kind:
            case "taints":
                make_taint(one.entry.key, text)
            case "annotations":
                make_annotation_value(text)
            case "platformMetadata" if one.entry.key in OVERRIDABLE.values():
                make_metadata_value(one.entry.key, text, sanitize=one.rule.sanitize, actions=trial.actions)
    except InvalidValueError as error:
        return str(error)
    return ""


def list_invalid_values(one: EntryTrials) -> list[tuple[Trial, str]]:
    """Return the matching samples whose value Kubernetes rejects, with the reason."""
    if "{{" not in one.entry.template:
        return []  # checked when the file was parsed
    given = [(trial, find_value_problem(one, trial)) for trial in one.matching_trials if trial.error is None]
    return [(trial, problem) for trial, problem in given if problem]


def format_platforms(platforms: Iterable[str]) -> str:
    """Return the names as text; of many only some."""
    names = list(platforms)
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def format_example(trials: Sequence[Trial]) -> str:
    """Return the result of the first trial and the platforms with the same problem."""
    first, *others = trials
    likewise = f" (likewise {format_platforms(t.platform for t in others)})" if others else ""
    return f'gives "{truncate_line(first.text)}" for a machine of {first.platform}{likewise}'


def _list_errors(one: EntryTrials) -> Iterator[tuple[bool, str]]:
    failed = [(trial, trial.error) for trial in one.trials if trial.error is not None]
    always = len(failed) == len(one.trials)
    for reason in dict.fromkeys(error.reason for _, error in failed):
        of_it = [(trial, error) for trial, error in failed if error.reason == reason]
        words = _describe_error(of_it[0][1], one.entry.template)
        if always or any(known in reason for known in _OF_THE_TEMPLATE):
            yield True, f"cannot be rendered: {words}"
        elif platforms := [trial.platform for trial, _ in of_it if trial.is_match]:
            where = f"for a machine of {format_platforms(platforms)} and is skipped there"
            yield False, f"cannot be rendered {where}: {words}"


def _list_invalid_results(one: EntryTrials) -> Iterator[str]:
    if one.kind == "labels" and one.rule.sanitize:
        return
    by_problem: dict[str, list[Trial]] = {}
    for trial, problem in list_invalid_values(one):
        by_problem.setdefault(problem, []).append(trial)
    hint = "; sanitize: true on the rule would write the nearest valid value" if one.kind == "labels" else ""
    for problem, trials in by_problem.items():
        yield f"{format_example(trials)} and is skipped there: {problem}{hint}"


def _describe_error(error: TemplateError, source: str) -> str:
    where = f"column {error.column + 1}"
    if "\n" in source.strip():
        where = f"line {error.line}, {where}"
    context = f" in {{{{{truncate_line(error.context)}}}}}" if error.context else ""
    return f"{shorten(error.reason)} ({where} of the template{context})"
