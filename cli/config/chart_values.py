"""Checks a values file of the chart, with its flags, image and rules. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import yaml

from cli.config.chart_flags import ChartFlags, check_flags, is_switched_on, list_services
from cli.config.chart_image import find_image_mistakes, find_image_warnings
from cli.config.chart_memory import find_low_limits
from cli.config.chart_schema import CHART, check_schema, make_finding
from cli.config.config_check import FileReport, check_config
from cli.config.values_documents import ValuesDocument, find_values
from libs.common.cloud_config.model import Finding
from libs.common.contract.services import SERVICES
from libs.common.settings.reference_flags import list_wildcard_differences, select_controllers

_SPOT: Final = re.compile(r"--?delete[-_]preempted[-_]gcp[-_]spot(=.*)?")
_NETWORKS: Final = re.compile(r"--?service[-_]cluster[-_]ip[-_]range(=.+)?")
_BIND: Final = re.compile(r"--?bind[-_]address=")
_LOOPBACK: Final = re.compile(r"127\.|::1$|localhost$")
_NEED_TALOS: Final = {spec.service for spec in SERVICES if spec.needs_talos}
_PROVEN: Final = "cloud-node-lifecycle deletes a Node only after proof that its machine is gone"
_SPOT_KEPT: Final = (
    "cloud-node-lifecycle keeps the Nodes of preempted GCP spot machines. The reference deletes them. "
    "To delete them, add --delete-preempted-gcp-spot to extraArgs"
)
_NOT_CHECKED: Final = (
    "files that flags or Secrets refer to, pod settings except memory limits (affinity, tolerations, "
    "...), extraObjects, and whether the image exists"
)


def check_values_file(text: bytes, source: str) -> list[FileReport]:
    """Check the values of each release in a file."""
    return [_check_document(each, source) for each in find_values(text)]


def check_values(text: str | bytes, source: str) -> FileReport:
    """Check a file with the values of one release."""
    [report] = check_values_file(text.encode() if isinstance(text, str) else text, source)
    return report


def _check_document(document: ValuesDocument, source: str) -> FileReport:
    if document.mistakes:
        return FileReport(source=source, owner=document.owner, mistakes=document.mistakes)
    report = _check(document.values, source)
    missing, elsewhere = _find_missing_image(document)
    return msgspec.structs.replace(
        report,
        owner=document.owner,
        warnings=(*document.warnings, *missing, *report.warnings),
        not_checked=", ".join((*elsewhere, *document.other_sources, _NOT_CHECKED)),
    )


def _find_missing_image(document: ValuesDocument) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the warning about a release without image; a values file leaves it to --set or another file."""
    if _mapping(document.values.get("image")).get("repository"):
        return (), ()
    if document.owner and not document.other_sources:
        return (make_finding("image.repository", "is not set, and the chart requires it"),), ()
    return (), ("image.repository (required, not set here)",)


def _check(values: dict[str, Any], source: str) -> FileReport:
    """Check schema, image, controllers, flags and rules; findings have no lines."""
    schema, rules = check_schema(values), check_config(_extract_cloud_config(values), source)
    given, image = _read_flags(values), _mapping(values.get("image"))
    chosen, flags = select_controllers(given.controllers), check_flags(given)
    wrong_name = bool(chosen.mistakes)  # reported with the valid names, instead of the schema's pattern
    return FileReport(
        source=source,
        mistakes=(
            *find_image_mistakes(image),
            *_check_daemon_set(values),
            *(each for each in schema.mistakes if not (wrong_name and "enabledControllers" in each.path)),
            *_report_controllers(chosen.mistakes),
            *_check_templates(values, given),
            *flags.mistakes,
            *_clear_lines(rules.mistakes),
        ),
        warnings=(
            *find_image_warnings(image),
            *schema.warnings,
            *find_low_limits(values, list_services(given), one_process=given.is_single_process),
            *_report_controllers(chosen.warnings),
            *flags.warnings,
            *_clear_lines(rules.warnings),
        ),
        differences=(*_check_controllers(given), *_clear_lines(rules.differences)),
        rules=rules.rules,
    )


def _extract_cloud_config(values: dict[str, Any]) -> str:
    """Return the --cloud-config file that the chart renders; the schema check covers other types and keys."""
    known = CHART["schema"]["properties"]["config"]["properties"]
    config = {key: value for key, value in _mapping(values.get("config")).items() if key in known}
    rules = values.get("transformations")
    config["transformations"] = rules if isinstance(rules, list) else []
    text: str = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    return text


def _read_flags(values: dict[str, Any]) -> ChartFlags:
    own = _mapping(values.get("services"))
    named = values.get("enabledControllers", CHART["enabledControllers"])
    entries = values.get("extraEnv")
    pairs = [_mapping(each) for each in entries] if isinstance(entries, list) else []
    return ChartFlags(
        controllers=_texts(named) if isinstance(named, list | None) else _texts(CHART["enabledControllers"]),
        common_flags=_texts(values.get("extraArgs")),
        service_flags={str(name): _texts(_mapping(each).get("extraArgs")) for name, each in own.items()},
        environment={str(each.get("name")): str(each["value"]) for each in pairs if "value" in each},
        queries_machines=_mapping(values.get("talos")).get("enabled", True) is not False,
        is_single_process=_mapping(values.get("daemonSet")).get("enabled") is True,
    )


def _check_daemon_set(values: dict[str, Any]) -> Iterator[Finding]:
    if values.get("useDaemonSet"):
        yield make_finding("useDaemonSet", "makes the installation fail. Use daemonSet.enabled")


def _check_templates(values: dict[str, Any], given: ChartFlags) -> Iterator[Finding]:
    """Yield values that the chart's templates reject."""
    names = list_services(given)
    args = given.arguments_for("metadata")
    is_without = is_switched_on("without-talos", args, default=not given.queries_machines)
    if not given.queries_machines and {*names} & _NEED_TALOS:
        yield make_finding("talos.enabled", "false allows node-csr-approval alone in enabledControllers")
    elif is_without and "ipam" in names:
        yield make_finding("extraArgs", "--without-talos does not work with node-ipam-controller")
    of_csr = ("watcher", "metadata", "csr") if given.is_single_process else ("csr",)
    if is_without and "csr" in names and not any(map(_NETWORKS.fullmatch, given.arguments_for(*of_csr))):
        yield make_finding(
            "services.csr.extraArgs", "--service-cluster-ip-range is missing: machines are not queried"
        )
    yield from _check_reachability(values, given)
    nats = _mapping(values.get("nats"))
    external = _mapping(nats.get("external"))
    if nats.get("enabled") is False and not given.is_single_process and not external.get("url"):
        yield make_finding("nats.external.url", "is missing: nats.enabled is false")


def _check_reachability(values: dict[str, Any], given: ChartFlags) -> Iterator[Finding]:
    """Yield metrics that Prometheus cannot reach, and servers that the pods cannot reach."""
    metrics, network = _mapping(values.get("metrics")), _mapping(values.get("networkPolicy"))
    if given.is_single_process:
        own = [
            flag.partition("=")[2] for flag in given.arguments_for(*list_services(given)) if _BIND.match(flag)
        ]
        address = (own or [_mapping(values["daemonSet"]).get("bindAddress") or "127.0.0.1"])[-1]
        if _mapping(metrics.get("podMonitor")).get("enabled") is True and _LOOPBACK.match(str(address)):
            yield make_finding(
                "metrics.podMonitor.enabled", "needs daemonSet.bindAddress, such as $(NODE_IP)"
            )
        return
    egress = _mapping(network.get("egress"))
    is_restricted = network.get("enabled") is not False and egress.get("enabled") is True
    is_elsewhere = values.get("otlpEndpoint") or _mapping(values.get("nats")).get("enabled") is False
    if is_restricted and is_elsewhere and not egress.get("extra"):
        yield make_finding("networkPolicy.egress.extra", "must allow otlpEndpoint and nats.external.url")


def _check_controllers(given: ChartFlags) -> Iterator[Finding]:
    yield from _report_controllers(list_wildcard_differences(given.controllers))
    if "lifecycle" not in list_services(given):
        return
    yield make_finding("enabledControllers", _PROVEN)
    names = list_services(given) if given.is_single_process else ("lifecycle",)
    if not any(map(_SPOT.fullmatch, given.arguments_for(*names))):
        yield make_finding("enabledControllers", _SPOT_KEPT)


def _report_controllers(told: Iterable[str]) -> Iterator[Finding]:
    """Yield the messages about --controllers as findings."""
    return (make_finding("enabledControllers", each.removeprefix("--controllers: ")) for each in told)


def _clear_lines(findings: Iterable[Finding]) -> Iterator[Finding]:
    return (msgspec.structs.replace(each, line=0) for each in findings)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
