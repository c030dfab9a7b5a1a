"""Checks the flags that the chart's values give to each process. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from cli.cluster.kube_objects import Container
from cli.config.chart_schema import CHART, find_value
from libs.common.cloud_config.findings import Findings
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import (
    NODE_ROUTE,
    SERVICE_LB,
    is_controller_selected,
    is_service_selected,
)
from libs.common.contract.instances import CLOUD_PROVIDERS
from libs.common.contract.services import CHART_ORDER, CLOUD, CONSOLE, CONSOLE_EXPOSED
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import ParsedSettings, list_options, validate_settings
from services.definitions import load_settings_types

SETTINGS_TYPES: Final = load_settings_types(CHART_ORDER)
_SET_BY_VALUES: Final = {
    "controllers": "does not select the installed services: use enabledControllers",
    "cloud-config": "replaces the file that the chart renders from transformations and config",
    "cloud-account": "selects no account that the chart knows: use clouds",
    "cloud-metadata-accounts": "names accounts beside clouds: use metadata of clouds",
    "secure-port": "does not change the port of the probes: use service.containerPort",
}
_EXPOSED_CONSOLE: Final = (  # that the chart sets; `chart_checks` checks their values
    "--console-address=0.0.0.0",
    "--console-tls-cert-file=/etc/console/tls/tls.crt",
    "--console-tls-key-file=/etc/console/tls/tls.key",
    "--console-allowed-host=console.example.com",
)
_ANOTHER: Final = ": it belongs to another service"
_ENDS: Final = "--help and --version end the process"
_BUS: Final = "--bus=memory works only with daemonSet.enabled: separate processes need NATS"

_Message = tuple[bool, str, str]  # whether it is a mistake, the path of the value, and the text


class ChartValues(msgspec.Struct, frozen=True):
    """The values of one release, and what becomes flags or environment of the processes."""

    values: dict[str, Any]

    def get(self, path: str) -> Any:
        """Return the value at a path such as `nats.external.url`; None if there is none."""
        return find_value(self.values, path)

    @property
    def controllers(self) -> tuple[str, ...]:
        named = self.values.get("enabledControllers", CHART["enabledControllers"])
        return _list_texts(named if isinstance(named, list | None) else CHART["enabledControllers"])

    @property
    def environment(self) -> dict[str, str]:
        """Return extraEnv."""
        listed = self.get("extraEnv")
        entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        return {str(each.get("name")): str(each["value"]) for each in entries if "value" in each}

    @property
    def queries_machines(self) -> bool:
        return self.get("talos.enabled") is not False

    @property
    def is_single_process(self) -> bool:
        return self.get("daemonSet.enabled") is True

    @property
    def accounts(self) -> tuple[dict[str, Any], ...]:
        """Return the entries of `clouds`."""
        listed = self.get("clouds")
        return tuple(each for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()

    def get_part(self, account: dict[str, Any], key: str, controller: str) -> dict[str, Any]:
        """Return `loadBalancers` or `routes` of an account; {} if its controller is not selected."""
        part = account.get(key) if is_controller_selected(self.controllers, controller) else None
        return part if isinstance(part, dict) else {}

    @property
    def services(self) -> tuple[str, ...]:
        """Return the names of the services that the chart installs; all cloud accounts are one."""

        def is_set(service: str, flag: str) -> bool:
            if service == CLOUD.service:
                return bool(self.accounts)
            if service == CONSOLE.service and self.get("console.enabled") is True:
                return True
            return self.make_container(service).is_switched_on(flag)

        return tuple(
            spec.service
            for spec in CHART_ORDER
            if is_service_selected(
                self.controllers, spec.controller, is_switched_on=partial(is_set, spec.service)
            )
        )

    def make_container(self, *names: str) -> Container:
        """Return the container that runs these services, with its flags alone."""
        without = () if self.queries_machines else ("--without-talos",)
        return Container(name="", args=(*without, *self.arguments_for(*names)))

    def arguments_for(self, *names: str) -> tuple[str, ...]:
        """Return the flags of a process that runs these services."""
        paths = ("extraArgs", *map(_locate_flags, names))
        return tuple(flag for path in paths for flag in _list_texts(self.get(path)))


def check_flags(chart: ChartValues) -> Findings:
    """Check the flags of every process that the chart installs."""
    names, found = chart.services, Findings()
    processes = [names] if chart.is_single_process else [(name,) for name in names]
    reporters: dict[_Message, list[str]] = {}
    for process in processes:
        for message in _check_process(chart, process):
            reporters.setdefault(message, []).extend(process)
    for text in _find_flags_set_by_values(chart):
        found.add_warning(0, "extraArgs:", text)
    for (is_mistake, path, text), services in reporters.items():
        if is_mistake:
            found.add_mistake(0, f"{path}:", _name_services(text, services, names))
        elif _ANOTHER in text and path.startswith("services."):  # a common flag may be of another service
            found.add_warning(0, f"{path}:", text)
        elif _ANOTHER not in text or len(services) == len(names):
            sentence = text.replace(_ANOTHER, ": no installed service accepts it")
            found.add_warning(0, f"{path}:", sentence)
    return found


def _check_process(chart: ChartValues, names: Sequence[str]) -> Iterator[_Message]:
    """Yield the messages that each source of flags adds, compared with the sources before it."""
    fixed = [f"--controllers={','.join(chart.controllers)}"]
    if not chart.queries_machines and {"metadata", "csr"} & {*names}:
        fixed.append("--without-talos")
    if CONSOLE.service in names and chart.get("console.exposed.enabled") is True:
        fixed += [f"--{CONSOLE_EXPOSED}", *_EXPOSED_CONSOLE]
    cloud = tuple(_build_cloud_flags(chart)) if CLOUD.service in names else ()
    paths = ("extraArgs", *map(_locate_flags, names))
    sources: list[tuple[str, tuple[str, ...], Mapping[str, str]]] = [
        ("", tuple(fixed), {}),
        ("clouds", cloud, {}),
        ("extraEnv", (), chart.environment),
        *((path, _list_texts(chart.get(path)), {}) for path in paths),
    ]
    own = SETTINGS_TYPES.values() if chart.is_single_process else (SETTINGS_TYPES[name] for name in names)
    kinds = [*own, ProcessSettings]
    arguments, environment, before = list[str](), dict[str, str](), set[tuple[bool, str]]()
    for path, more, variables in sources:
        arguments += more
        environment |= variables
        reading, mistakes = validate_settings(kinds, arguments, environment, config=CloudConfig())
        mistakes = (*map(_strip_suggestion, mistakes), *_find_more_mistakes(reading, chart))
        messages = [*((True, each) for each in mistakes), *((False, each) for each in reading.warnings)]
        if path:
            yield from ((kind, path, text) for kind, text in messages if (kind, text) not in before)
        before.update(messages)


def _build_cloud_flags(chart: ChartValues) -> Iterator[str]:
    """Yield the flags of all accounts but those whose values `chart_checks` checks; names are unique."""
    yield "--cloud-credential-file=/etc/clouds/{account}/credential"
    known = [each for each in chart.accounts if each.get("provider") in CLOUD_PROVIDERS]
    for name, account in {str(each.get("account")): each for each in known}.items():
        yield f"--cloud-account={account.get('provider')}/{name}"
        balancers = chart.get_part(account, "loadBalancers", SERVICE_LB)
        if "class" in balancers:
            yield f"--load-balancer-class={name}={balancers['class']}"
        if balancers.get("default") is True:
            yield f"--load-balancer-default-account={name}"
        options = balancers.get("options")
        for option, value in options.items() if isinstance(options, dict) else ():
            yield f"--load-balancer-option={name}/{option}={value}"
        routes = chart.get_part(account, "routes", NODE_ROUTE)
        if routes:
            yield f"--route-network={name}" + (f"={routes['network']}" if routes.get("network") else "")
        for network in _list_texts(routes.get("podNetworks")):
            yield f"--route-pod-network={name}={network}"


def _find_more_mistakes(reading: ParsedSettings, chart: ChartValues) -> Iterator[str]:
    if reading.wants_help or reading.wants_version:
        yield _ENDS
    elif reading.get(ProcessSettings).bus == "memory" and not chart.is_single_process:
        yield _BUS


def _name_services(text: str, services: Sequence[str], names: Sequence[str]) -> str:
    """Return the message with the affected services, unless all are; and where the flag belongs."""
    some = "" if len(services) in (1, len(names)) else f" ({', '.join(services)})"
    places = " or ".join(map(_locate_flags, _list_accepting_services(text)))
    return f"{text}{some}" + (f". Set it in {places}" if places else "")


def _strip_suggestion(text: str) -> str:
    """Remove "did you mean" if another service accepts the flag."""
    return text.partition(", did you mean")[0] if _list_accepting_services(text) else text


def _list_accepting_services(text: str) -> list[str]:
    """Return the services that accept a flag that another one reports as unknown."""
    unknown = re.match(r"unknown flag --([^\s,]+)", text)
    return [
        name
        for name, kind in SETTINGS_TYPES.items()
        if unknown and unknown[1] in {each.flag.name for each in list_options(kind)}
    ]


def _find_flags_set_by_values(chart: ChartValues) -> Iterator[str]:
    services = chart.get("services")
    container = chart.make_container(*(services if isinstance(services, dict) else ()))
    for flag, why in _SET_BY_VALUES.items():
        if container.flag_values(flag):
            yield f"--{flag} {why}"


def _locate_flags(service: str) -> str:
    """Return the path of the value with the flags of one service."""
    return f"services.{service}.extraArgs"


def _list_texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
