"""Checks of the chart's values beyond types and flags: image, memory, and what the templates reject. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from cli.config.chart_flags import ChartValues
from cli.config.chart_schema import CHART, find_value, make_finding
from libs.common.cloud_config.findings import truncate_line
from libs.common.cloud_config.model import Finding
from libs.common.contract.controllers import (
    NODE_ROUTE,
    SERVICE_LB,
    find_controller_mistakes,
    is_controller_selected,
    list_wildcard_differences,
)
from libs.common.contract.instance_metadata import METADATA_PROVIDERS
from libs.common.contract.services import ALL_IN_ONE_PEAK_MEBIBYTES, CLOUD, SERVICE_TABLE

_REFERENCE_IMAGE: Final = re.compile(r"(^|/)siderolabs/talos-cloud-controller-manager([:@].*)?$")
_VERSION: Final = re.compile(r"v[0-9]+([.-]|$)|[0-9]+\.[0-9]")
_NUMBER: Final = re.compile(r"[0-9]+")
_QUANTITY: Final = re.compile(
    r"\+?(\d{1,20}\.?\d{0,20}|\.\d{1,20})([KMGTPE]i|[mkMGTPE]|[eE][+-]?\d{1,2})?", re.ASCII
)
_DECIMAL: Final = {"": 1.0, "m": 1e-3, **{unit: 1000.0**power for power, unit in enumerate("kMGTPE", 1)}}
_BINARY: Final = {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)}
_PEAKS: Final = {spec.service: spec.peak_mebibytes for spec in SERVICE_TABLE}
_LOOPBACK: Final = re.compile(r"127\.|::1$|localhost$")
_OF_NODES: Final = {spec.service for spec in SERVICE_TABLE if spec.controller.name}
_NEED_TALOS: Final = {spec.service for spec in SERVICE_TABLE if spec.needs_talos}
_OF_ACCOUNTS: Final = {"loadBalancers": SERVICE_LB, "routes": NODE_ROUTE}  # by the key of an account
_LABELS_OF_ALL: Final = {"app.kubernetes.io/name", "app.kubernetes.io/instance"}  # of all pods
_APART: Final = (
    "keeps the pods of all services, and of NATS, on different nodes. With fewer nodes, some pods stay "
    "Pending and no Node is initialized. Remove it: replicas of a service prefer different nodes by default. "
    "Or select app.kubernetes.io/component in services.<name>.affinity"
)
_PROVEN: Final = "cloud-node-lifecycle deletes a Node only after proof that its machine is gone"
_SPOT_KEPT: Final = (
    "cloud-node-lifecycle keeps the Nodes of preempted GCP spot machines. The reference deletes them. "
    "To delete them, add --delete-preempted-gcp-spot to extraArgs"
)


def find_image_mistakes(chart: ChartValues) -> Iterator[Finding]:
    """Yield an image that the chart rejects."""
    repository = chart.get("image.repository")
    # A digest names one exact image; the schema rejects other types.
    if chart.get("image.digest") or not isinstance(repository, str):
        return
    if _REFERENCE_IMAGE.search(repository):
        problem = f"{truncate_line(repository)} is the reference's image. Set your own image"
        if not repository.startswith("ghcr.io/"):
            problem += ". If your own image has this name, set image.digest"
        yield make_finding("image.repository", problem)


def find_image_warnings(chart: ChartValues) -> Iterator[Finding]:
    """Yield a tag that may not exist."""
    tag = chart.get("image.tag")
    if chart.get("image.digest") or not isinstance(tag, str) or tag in ("", CHART["appVersion"]):
        return
    # another major number than that of this chart, by the chart's own rule
    is_other = _VERSION.match(tag) and _NUMBER.findall(tag)[0] != _NUMBER.findall(CHART["appVersion"])[0]
    why = f" is not a version of this controller ({CHART['appVersion']})" if is_other else ""
    yield make_finding(
        "image.tag", f"{truncate_line(tag)}{why}: remove it unless you have pushed an image with this tag"
    )


def find_idle_controllers(chart: ChartValues) -> Iterator[Finding]:
    """Yield a warning for each controller of accounts that no account uses."""
    for key, controller in _OF_ACCOUNTS.items():
        parts = [chart.get_part(account, key, controller) for account in chart.accounts]
        if is_controller_selected(chart.controllers, controller) and not any(parts):
            yield make_finding("enabledControllers", f"{controller} has no effect without {key} in clouds")
    for account in chart.accounts:
        part = account.get("loadBalancers")
        if isinstance(part, dict) and not (part.get("class") or part.get("default")):
            name = truncate_line(str(account.get("account")))
            yield make_finding("clouds", f"loadBalancers of account {name} has neither class nor default")


def find_idle_values(chart: ChartValues) -> Iterator[Finding]:
    """Yield a warning for each value that a missing switch leaves without effect."""
    if chart.get("console.exposed.enabled") is True and chart.get("console.enabled") is not True:
        yield make_finding("console.exposed.enabled", "has no effect without console.enabled: true")
    if chart.get("nats.external.url") and chart.get("nats.enabled") is not False:
        yield make_finding("nats.external.url", "has no effect without nats.enabled: false")
    own = chart.get("services")
    for name in own if isinstance(own, dict) else ():
        if own[name] and name in _PEAKS and name not in chart.services:
            yield make_finding(f"services.{name}", f"has no effect: {name} is not installed")


def find_low_limits(chart: ChartValues) -> Iterator[Finding]:
    """Yield a warning for each memory limit below a measured peak.

    Services without resources of their own inherit the common ones.
    """
    common: dict[str, int] = {"one process": ALL_IN_ONE_PEAK_MEBIBYTES}
    own: list[str] = []
    if not chart.is_single_process:
        own = [name for name in chart.services if chart.get(f"services.{name}.resources")]
        common = {name: _PEAKS[name] for name in chart.services if name not in own}
    yield from _check_limit(chart, "resources", common)
    for name in own:
        yield from _check_limit(chart, f"services.{name}.resources", {name: _PEAKS[name]})


def parse_mebibytes(quantity: Any) -> float | None:
    """Return a Kubernetes quantity of bytes in MiB; None for an invalid one, which Kubernetes rejects."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None or isinstance(quantity, bool):
        return None
    number, unit = float(match[1]), match[2] or ""
    factor = _DECIMAL.get(unit) or _BINARY.get(unit) or float(f"1{unit}")
    return number * factor / 2**20


def _check_limit(chart: ChartValues, path: str, peaks: Mapping[str, int]) -> Iterator[Finding]:
    limit = chart.get(f"{path}.limits.memory")
    mebibytes = parse_mebibytes(limit)
    if mebibytes is None:
        return
    higher = [f"{peak} MiB ({name})" for name, peak in peaks.items() if peak > mebibytes]
    if higher:
        text = f"{truncate_line(str(limit))} is less than the peak of 1000 joining nodes: {', '.join(higher)}"
        yield make_finding(f"{path}.limits.memory", f"{text}. The kernel may kill the process")


def find_template_mistakes(chart: ChartValues) -> Iterator[Finding]:
    """Yield values that the chart's templates reject."""
    names = chart.services
    is_without = chart.make_container("metadata").is_switched_on("without-talos")
    if not find_controller_mistakes(chart.controllers) and not {*names} & _OF_NODES:
        yield make_finding("enabledControllers", "selects no controller of Nodes: nothing runs")
    if not chart.queries_machines and {*names} & _NEED_TALOS:
        yield make_finding("talos.enabled", "false allows node-csr-approval alone in enabledControllers")
    elif is_without and "ipam" in names:
        yield make_finding("extraArgs", "--without-talos does not work with node-ipam-controller")
    of_csr = ("watcher", "metadata", "csr") if chart.is_single_process else ("csr",)
    networks = chart.make_container(*of_csr).flag_values("service-cluster-ip-range")
    if is_without and "csr" in names and not any(networks):
        yield make_finding(
            "services.csr.extraArgs", "--service-cluster-ip-range is missing: machines are not queried"
        )
    yield from _check_accounts(chart)
    yield from _check_console(chart)
    yield from _check_reachability(chart)
    is_external = chart.get("nats.enabled") is False and not chart.is_single_process
    if is_external and not chart.get("nats.external.url"):
        yield make_finding("nats.external.url", "is missing: nats.enabled is false")


def _check_accounts(chart: ChartValues) -> Iterator[Finding]:
    """Yield accounts with the name or the credential of another one."""
    secrets = [find_value(account, "secretRef") for account in chart.accounts]
    keys = [
        (str(secret["name"]), str(secret.get("key") or "token"))
        for secret in secrets
        if isinstance(secret, dict) and "name" in secret
    ]
    names = [str(account["account"]) for account in chart.accounts if "account" in account]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield make_finding("clouds", f"the account {truncate_line(name)} is there twice")
    for name, key in sorted({each for each in keys if keys.count(each) > 1}):
        secret = f"Secret {truncate_line(name)}, key {truncate_line(key)}"
        yield make_finding("clouds", f"two accounts have the credential of {secret}")
    for account in chart.accounts:
        name = f"account {truncate_line(str(account.get('account')))}"
        if account.get("metadata") and str(account.get("provider")) not in METADATA_PROVIDERS:
            clouds = " and ".join(METADATA_PROVIDERS)
            yield make_finding("clouds", f"{name} supplies no metadata: only accounts of {clouds} do")
        elif account.get("network") and not account.get("metadata"):
            yield make_finding("clouds", f"the network of {name} has no effect without metadata: true")
        for key, controller in _OF_ACCOUNTS.items():
            if account.get(key) and not chart.get_part(account, key, controller):
                add = f"add {controller} to enabledControllers"
                yield make_finding("clouds", f"{key} of {name} has no effect: {add}")
    if sum(find_value(account, "loadBalancers.default") is True for account in chart.accounts) > 1:
        yield make_finding("clouds", "two accounts have loadBalancers.default: true")


def _check_console(chart: ChartValues) -> Iterator[Finding]:
    if not (chart.get("console.enabled") is True and chart.get("console.exposed.enabled") is True):
        return
    if chart.is_single_process:
        yield make_finding(
            "console.exposed", "does not work with daemonSet.enabled: use kubectl port-forward"
        )
    for key in ("tlsSecretName", "hosts"):
        if not chart.get(f"console.exposed.{key}"):
            yield make_finding(f"console.exposed.{key}", "is missing")


def _check_reachability(chart: ChartValues) -> Iterator[Finding]:
    """Yield metrics that Prometheus cannot reach, and servers that the pods cannot reach."""
    if chart.is_single_process:
        default = str(chart.get("daemonSet.bindAddress") or "127.0.0.1")
        address = chart.make_container(*chart.services).last_flag_value("bind-address", default)
        if chart.get("metrics.podMonitor.enabled") is True and _LOOPBACK.match(address):
            yield make_finding(
                "metrics.podMonitor.enabled", "needs daemonSet.bindAddress, such as $(NODE_IP)"
            )
        return
    is_restricted = (
        chart.get("networkPolicy.enabled") is not False and chart.get("networkPolicy.egress.enabled") is True
    )
    is_elsewhere = chart.get("otlpEndpoint") or chart.get("nats.enabled") is False
    if is_restricted and is_elsewhere and not chart.get("networkPolicy.egress.extra"):
        yield make_finding("networkPolicy.egress.extra", "must allow otlpEndpoint and nats.external.url")


def find_controller_differences(chart: ChartValues) -> Iterator[Finding]:
    """Yield what controllers of the reference do otherwise."""
    yield from report_controllers(list_wildcard_differences(chart.controllers))
    if "lifecycle" not in chart.services:
        return
    yield make_finding("enabledControllers", _PROVEN)
    names = chart.services if chart.is_single_process else ("lifecycle",)
    if not chart.make_container(*names).flag_values("delete-preempted-gcp-spot"):
        yield make_finding("enabledControllers", _SPOT_KEPT)


def find_account_differences(chart: ChartValues) -> Iterator[Finding]:
    """Yield the ServiceAccounts that must exist: that of the reference is not enough."""
    if chart.get("serviceAccount.create") is not False or chart.is_single_process:
        return
    accounts = [f"{CLOUD.service}-{account.get('account')}" for account in chart.accounts]
    services = [name for name in chart.services if name != CLOUD.service]
    nats = [] if chart.get("nats.enabled") is False else ["nats"]
    prefix = chart.get("serviceAccount.name") or "<prefix of all names>"
    names = ", ".join(truncate_line(f"{prefix}-{name}") for name in (*services, *accounts, *nats))
    yield make_finding("serviceAccount.create", f"false needs a ServiceAccount for each service: {names}")


def find_affinity_differences(chart: ChartValues) -> Iterator[Finding]:
    """Yield a required anti-affinity that the pods of all services have: in the reference there is one."""
    terms = chart.get("affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    if not chart.is_single_process and isinstance(terms, list) and any(map(_selects_all_services, terms)):
        yield make_finding("affinity", _APART)


def _selects_all_services(term: Any) -> bool:
    selector = find_value(term, "labelSelector")
    labels, expressions = (find_value(selector, key) for key in ("matchLabels", "matchExpressions"))
    keys = {str(find_value(each, "key")) for each in expressions} if isinstance(expressions, list) else set()
    keys |= {*labels} if isinstance(labels, dict) else set()
    return isinstance(selector, dict) and keys <= _LABELS_OF_ALL and not find_value(term, "matchLabelKeys")


def report_controllers(messages: Iterable[str]) -> Iterator[Finding]:
    """Yield the messages about --controllers as findings."""
    return (make_finding("enabledControllers", each.removeprefix("--controllers: ")) for each in messages)
