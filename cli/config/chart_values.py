"""A values file of the chart -> what of it cannot work here, or works otherwise, and its rules. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import yaml

from cli.config.chart_flags import Given, is_switched_on, judge_flags, services_of
from cli.config.chart_image import image_mistakes, image_warnings
from cli.config.chart_schema import CHART, about, judge_schema
from cli.config.checking import Checked, check
from libs.common.cloud_config.model import Finding
from libs.common.safe_yaml import YamlError, read_yaml
from libs.common.settings.reference_flags import list_wildcard_differences, select_controllers

_SPOT: Final = re.compile(r"--?delete[-_]preempted[-_]gcp[-_]spot(=.*)?")
_NETWORKS: Final = re.compile(r"--?service[-_]cluster[-_]ip[-_]range(=.+)?")
_PROVEN: Final = "cloud-node-lifecycle deletes a Node only if its machine is proven to be gone"
_SPOT_KEPT: Final = (
    "cloud-node-lifecycle keeps the Nodes of preempted GCP spot machines. The reference deletes them. "
    "To delete them, add --delete-preempted-gcp-spot to extraArgs"
)
_NOT_CHECKED: Final = (
    "files that flags or Secrets name, the values of pods (resources, affinity, tolerations, ...), "
    "extraObjects, and whether the image exists"
)


def check_values(text: str | bytes, source: str) -> Checked:
    """Judge the schema, the image, controllers, flags and rules of a values file, without lines."""
    try:
        found: Any = read_yaml(text.encode() if isinstance(text, str) else text, object)
    except YamlError as error:
        return Checked(source=source, mistakes=(Finding(line=error.line, problem=error.problem),))
    if not isinstance(found, dict | None):
        return Checked(source=source, mistakes=(Finding(problem="is not a mapping of values"),))
    return _check(found or {}, source)


def _check(values: dict[str, Any], source: str) -> Checked:
    schema, rules = judge_schema(values), check(_config_of(values), source)
    given, image = _given(values), _mapping(values.get("image"))
    chosen, flags = select_controllers(given.controllers), judge_flags(given)
    wrong_name = bool(chosen.mistakes)  # told with the names that there are, not with the schema's pattern
    return Checked(
        source=source,
        mistakes=(
            *image_mistakes(image),
            *_of_daemon_set(values),
            *(each for each in schema.mistakes if not (wrong_name and "enabledControllers" in each.path)),
            *_findings(chosen.mistakes),
            *_of_templates(values, given),
            *flags.mistakes,
            *_without_line(rules.mistakes),
        ),
        warnings=(
            *image_warnings(image),
            *schema.warnings,
            *_findings(chosen.warnings),
            *flags.warnings,
            *_without_line(rules.warnings),
        ),
        differences=(*_of_controllers(given), *_without_line(rules.differences)),
        rules=rules.rules,
        not_checked=_NOT_CHECKED,
    )


def _config_of(values: dict[str, Any]) -> str:
    """The --cloud-config file that the chart makes of them; other types and keys are judged by the schema."""
    known = CHART["schema"]["properties"]["config"]["properties"]
    config = {key: value for key, value in _mapping(values.get("config")).items() if key in known}
    rules = values.get("transformations")
    config["transformations"] = rules if isinstance(rules, list) else []
    text: str = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    return text


def _given(values: dict[str, Any]) -> Given:
    own = _mapping(values.get("services"))
    named = values.get("enabledControllers", CHART["enabledControllers"])
    entries = values.get("extraEnv")
    pairs = [_mapping(each) for each in entries] if isinstance(entries, list) else []
    return Given(
        controllers=_texts(named) if isinstance(named, list | None) else _texts(CHART["enabledControllers"]),
        common=_texts(values.get("extraArgs")),
        own={str(name): _texts(_mapping(each).get("extraArgs")) for name, each in own.items()},
        environment={str(each.get("name")): str(each["value"]) for each in pairs if "value" in each},
        asks_machines=_mapping(values.get("talos")).get("enabled", True) is not False,
        in_one_process=_mapping(values.get("daemonSet")).get("enabled") is True,
    )


def _of_daemon_set(values: dict[str, Any]) -> Iterator[Finding]:
    if values.get("useDaemonSet"):
        yield about("useDaemonSet", "fails the install. Use daemonSet.enabled")


def _of_templates(values: dict[str, Any], given: Given) -> Iterator[Finding]:
    """What the chart's templates refuse."""
    names = services_of(given)
    args = given.args_of("metadata")
    is_without = is_switched_on("without-talos", args, default=not given.asks_machines)
    if not given.asks_machines and {*names} & {"labeler", "ipam", "lifecycle"}:
        yield about("talos.enabled", "false allows node-csr-approval alone in enabledControllers")
    elif is_without and "ipam" in names:
        yield about("extraArgs", "--without-talos does not work with node-ipam-controller")
    of_csr = ("watcher", "metadata", "csr") if given.in_one_process else ("csr",)
    if is_without and "csr" in names and not any(map(_NETWORKS.fullmatch, given.args_of(*of_csr))):
        yield about("services.csr.extraArgs", "--service-cluster-ip-range is missing: no machine is asked")
    nats = _mapping(values.get("nats"))
    external = _mapping(nats.get("external"))
    if nats.get("enabled") is False and not given.in_one_process and not external.get("url"):
        yield about("nats.external.url", "is missing: nats.enabled is false")


def _of_controllers(given: Given) -> Iterator[Finding]:
    yield from _findings(list_wildcard_differences(given.controllers))
    if "lifecycle" not in services_of(given):
        return
    yield about("enabledControllers", _PROVEN)
    names = services_of(given) if given.in_one_process else ("lifecycle",)
    if not any(map(_SPOT.fullmatch, given.args_of(*names))):
        yield about("enabledControllers", _SPOT_KEPT)


def _findings(told: Iterable[str]) -> Iterator[Finding]:
    """Of --controllers."""
    return (about("enabledControllers", each.removeprefix("--controllers: ")) for each in told)


def _without_line(findings: Iterable[Finding]) -> Iterator[Finding]:
    return (msgspec.structs.replace(each, line=0) for each in findings)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
