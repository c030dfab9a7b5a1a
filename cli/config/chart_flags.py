"""Checks the flags that the chart's values give to each process. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from cli.config.chart_schema import ChartFindings, make_finding
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.services import CHART_ORDER
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import ParsedSettings, list_options, validate_settings
from libs.common.settings.reference_flags import is_service_selected
from services.definitions import load_settings_types

SettingsType = type[msgspec.Struct]
SETTINGS_TYPES: Final = load_settings_types(CHART_ORDER)
_SET_BY_VALUES: Final = {
    "controllers": "does not select the installed services: use enabledControllers",
    "cloud-config": "replaces the file that the chart renders from transformations and config",
    "secure-port": "does not change the port of the probes: use service.containerPort",
}
_ANOTHER: Final = ": it belongs to another service"
_ENDS: Final = "--help and --version end the process"
_BUS: Final = "--bus=memory works only with daemonSet.enabled: separate processes need NATS"


class ChartFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the values that become flags or environment of the processes."""

    controllers: tuple[str, ...]
    common_flags: tuple[str, ...]  # extraArgs
    service_flags: Mapping[str, tuple[str, ...]]  # services.<name>.extraArgs
    environment: Mapping[str, str] = {}  # extraEnv
    queries_machines: bool = True  # talos.enabled
    is_single_process: bool = False  # daemonSet.enabled

    def arguments_for(self, *names: str) -> tuple[str, ...]:
        """Return the flags of a process that runs these services."""
        return (*self.common_flags, *(flag for name in names for flag in self.service_flags.get(name, ())))


def list_services(given: ChartFlags) -> tuple[str, ...]:
    """Return the names of the services that the chart installs."""
    return tuple(
        spec.service
        for spec in CHART_ORDER
        if is_service_selected(
            given.controllers, spec.controller, is_switched_on=partial(_is_set, given, spec.service)
        )
    )


def _is_set(given: ChartFlags, service: str, flag: str) -> bool:
    return is_switched_on(flag, given.arguments_for(service))


def is_switched_on(flag: str, arguments: Sequence[str], *, default: bool = False) -> bool:
    """Whether a boolean flag is true; the last occurrence counts."""
    pattern = re.compile(rf"--?{flag.replace('-', '[-_]')}(=.*)?")
    found = [word for word in arguments if pattern.fullmatch(word)]
    return not re.search("=(0|f|false)$", found[-1], re.IGNORECASE) if found else default


def check_flags(given: ChartFlags) -> ChartFindings:
    """Check the flags of every process that the chart installs."""
    names = list_services(given)
    processes = [names] if given.is_single_process else [(name,) for name in names]
    judged = [_check_process(given, each) for each in processes]
    mistakes = _group_by_text(zip(processes, (each.mistakes for each in judged), strict=True))
    warnings = _group_by_text(zip(processes, (each.warnings for each in judged), strict=True))
    return ChartFindings(
        [make_finding(path, _name_services(told, who, names)) for (path, told), who in mistakes.items()],
        [
            *(make_finding("extraArgs", told) for told in _find_flags_set_by_values(given)),
            *(
                make_finding(path, told.replace(_ANOTHER, ": no installed service accepts it"))
                for (path, told), who in warnings.items()
                if _ANOTHER not in told or len(who) == len(names)
            ),
        ],
    )


class _ProcessMessages(msgspec.Struct, frozen=True):
    """Messages of one process, each with the path of the value."""

    mistakes: list[tuple[str, str]] = []
    warnings: list[tuple[str, str]] = []


def _check_process(given: ChartFlags, names: Sequence[str]) -> _ProcessMessages:
    """Return the messages that each source of flags adds, compared with the sources before it."""
    fixed = [f"--controllers={','.join(given.controllers)}"]
    if not given.queries_machines and {"metadata", "csr"} & {*names}:
        fixed.append("--without-talos")
    stages: list[tuple[str, tuple[str, ...], Mapping[str, str]]] = [
        ("", (), {}),
        ("extraEnv", (), given.environment),
        ("extraArgs", given.common_flags, given.environment),
    ]
    for count, name in enumerate(names, 1):
        path = f"services.{name}.extraArgs"
        stages.append((path, given.arguments_for(*names[:count]), given.environment))
    kinds: list[SettingsType] = [*_list_settings_types(names, given), ProcessSettings]
    found, before = _ProcessMessages([], []), (frozenset[str](), frozenset[str]())
    for path, arguments, environment in stages:
        reading, mistakes = validate_settings(kinds, [*fixed, *arguments], environment, config=CloudConfig())
        mistakes = (*map(_strip_suggestion, mistakes), *_find_more_mistakes(reading, given))
        if path:
            found.mistakes.extend((path, each) for each in mistakes if each not in before[0])
            found.warnings.extend((path, each) for each in reading.warnings if each not in before[1])
        before = before[0] | {*mistakes}, before[1] | {*reading.warnings}
    return found


def _list_settings_types(names: Sequence[str], given: ChartFlags) -> list[SettingsType]:
    return [*SETTINGS_TYPES.values()] if given.is_single_process else [SETTINGS_TYPES[name] for name in names]


def _find_more_mistakes(reading: ParsedSettings, given: ChartFlags) -> Iterator[str]:
    if reading.wants_help or reading.wants_version:
        yield _ENDS
    elif reading.get(ProcessSettings).bus == "memory" and not given.is_single_process:
        yield _BUS


def _group_by_text(
    told: Iterator[tuple[Sequence[str], list[tuple[str, str]]]],
) -> dict[tuple[str, str], list[str]]:
    """Return the services that report each message, by path and text."""
    found: dict[tuple[str, str], list[str]] = {}
    for names, words in told:
        for each in words:
            found.setdefault(each, []).extend(names)
    return found


def _name_services(told: str, who: Sequence[str], names: Sequence[str]) -> str:
    """Return the message with the affected services, unless all are; and where the flag belongs."""
    some = "" if len(who) in (1, len(names)) else f" ({', '.join(who)})"
    places = " or ".join(f"services.{name}.extraArgs" for name in _list_accepting_services(told))
    return f"{told}{some}" + (f". Set it in {places}" if places else "")


def _strip_suggestion(told: str) -> str:
    """Remove "did you mean" if another service accepts the flag."""
    return told.partition(", did you mean")[0] if _list_accepting_services(told) else told


def _list_accepting_services(told: str) -> list[str]:
    """Return the services that accept a flag that another one reports as unknown."""
    unknown = re.match(r"unknown flag --([^\s,]+)", told)
    return [name for name in SETTINGS_TYPES if unknown and _accepts_flag(name, unknown[1])]


def _accepts_flag(service: str, flag: str) -> bool:
    return any(flag in each.flag.spellings for each in list_options(SETTINGS_TYPES[service]))


def _find_flags_set_by_values(given: ChartFlags) -> Iterator[str]:
    words = [word for each in (given.common_flags, *given.service_flags.values()) for word in each]
    for flag, why in _SET_BY_VALUES.items():
        if any(re.fullmatch(rf"--?{flag.replace('-', '[-_]')}(=.*)?", word) for word in words):
            yield f"--{flag} {why}"
