"""Values for tests of the chart, and commands of rendered containers, parsed by the services' own code."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from libs.common.service.run_process import expand_definitions
from libs.common.service.service import ServiceDefinition
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import ParsedSettings, read_settings
from libs.testbed.helm.chart import (
    ChartValues,
    Manifest,
    render_manifests,
    select_service_deployments,
)
from libs.testbed.helm.renders import PROFILES as FOLDER
from services.definitions import load_definitions

# Old values name the reference's image, which the chart rejects: an operator who migrates names another one.
_REFERENCE = ChartValues(files=(FOLDER / "reference-values.yaml",))
ZONE = "topology.kubernetes.io/zone"
PUSHED: dict[str, Any] = {"image.repository": "registry.example.com/talos-cloud-controller-manager"}
ACCOUNTS = ("prod", "staging-2")
CLOUDS: list[dict[str, Any]] = [
    {
        "provider": "hcloud",
        "account": "prod",
        "secretRef": {"name": "hcloud"},
        "anchor": "network/4711",
        "metadata": True,
        "network": "4712",
    },
    {"provider": "hcloud", "account": "staging-2", "secretRef": {"name": "clouds", "key": "staging"}},
]
BALANCERS: dict[str, Any] = {
    "class": "example.com/hcloud",
    "default": True,
    "options": {"HCLOUD_NETWORK": "4711", "HCLOUD_LOAD_BALANCERS_USE_PRIVATE_IP": "true"},
}
EXPOSED: dict[str, Any] = {
    "console.enabled": True,
    "console.exposed.enabled": True,
    "console.exposed.tlsSecretName": "console-tls",
    "console.exposed.hosts": ["console.example", "192.0.2.9"],
}
WITH_CONTROLLERS = [
    CLOUDS[0] | {"loadBalancers": BALANCERS, "routes": {"network": "4711"}},
    *CLOUDS[1:],
]
PROFILES: dict[str, ChartValues] = {
    path.stem.removesuffix("-values"): ChartValues(files=(path,)) for path in sorted(FOLDER.glob("*.yaml"))
} | {
    "reference": msgspec.structs.replace(_REFERENCE, overrides=PUSHED),
    "daemonset": ChartValues(
        overrides={
            "daemonSet.enabled": True,
            "enabledControllers": ["cloud-node", "node-csr-approval", "service-lb-controller", "route"],
            "clouds": WITH_CONTROLLERS,
        }
    ),
    "reference-daemonset": msgspec.structs.replace(
        _REFERENCE, overrides=PUSHED | {"daemonSet.enabled": True}
    ),
    "elsewhere": ChartValues(
        files=(FOLDER / "ha-values.yaml",),
        overrides={
            "serviceAccount.name": "ours",
            "enabledControllers": [
                "*",
                "nodeipam",
                "cloud-node-lifecycle",
                "service",
                "node-route-controller",
            ],
            "networkPolicy.egress.enabled": True,
            "clouds": WITH_CONTROLLERS,
            "podLabels": {"example.net/owner": "platform"},
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "updateStrategy.rollingUpdate": {"maxUnavailable": 1, "maxSurge": "50%"},
        },
        release="edge",
        namespace="talos-system",
    ),
}
IN_NAMES = {"elsewhere": "edge-talos-cloud-controller-manager"}
DEPLOYED = [name for name in PROFILES if "daemonset" not in name and name != "all-in-one"]
WITH_NATS = [name for name in DEPLOYED if name != "external-nats"]
POLICY = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", *POLICY}


@functools.cache
def rendered(profile: str) -> list[Manifest]:
    """The objects of that profile."""
    return render_manifests(PROFILES[profile])


def rendered_for(profile: str, kubernetes: str) -> list[Manifest]:
    """The objects of that profile for an older version of Kubernetes."""
    return render_manifests(msgspec.structs.replace(PROFILES[profile], kubernetes=kubernetes))


def prefix(profile: str) -> str:
    """The prefix of the names of its objects."""
    return IN_NAMES.get(profile, "talos-cloud-controller-manager")


def controllers_in(profile: str) -> tuple[str, ...]:
    """The value of --controllers in its pods."""
    pods = (m["spec"]["template"]["spec"] for m in workloads(profile))
    args = (arg for pod in pods for container in pod["containers"] for arg in container.get("args", ()))
    flag = "--controllers="
    return tuple(next(arg for arg in args if arg.startswith(flag)).removeprefix(flag).split(","))


def services_in(profile: str) -> list[str]:
    """The services with a Deployment."""
    head = f"{prefix(profile)}-"
    return [name.removeprefix(head) for name in select_service_deployments(rendered(profile))]


def workloads(profile: str) -> list[Manifest]:
    """The objects that run pods."""
    return [m for m in rendered(profile) if m["kind"] in {"Deployment", "DaemonSet", "StatefulSet"}]


def containers(workload: Manifest) -> Iterator[dict[str, Any]]:
    """All containers of its pods, init containers included."""
    pod = workload["spec"]["template"]["spec"]
    yield from pod.get("initContainers", [])
    yield from pod["containers"]


RUNS: dict[str, ServiceDefinition[Any]] = {each.spec.service: each for each in load_definitions()}


def arguments(container: dict[str, Any], found: list[Manifest], folder: Path) -> list[str]:
    """The container's arguments, with the config file in a folder of the test."""
    config = next(m for m in found if m["kind"] == "ConfigMap")
    path = folder / "ccm-config.yaml"
    path.write_text(config["data"]["ccm-config.yaml"])
    given: list[str] = container["args"]
    assert "--cloud-config=/etc/talos/ccm-config.yaml" in given
    return [f"--cloud-config={path}" if each.startswith("--cloud-config=") else each for each in given]


def reading_of(
    container: dict[str, Any], found: list[Manifest], folder: Path
) -> tuple[list[ServiceDefinition[Any]], ParsedSettings]:
    """The services that the container's command runs, and the settings that they read."""
    python, m, module = container["command"]
    assert (python, m) == ("python", "-m")
    runs = list(RUNS.values()) if module == "services" else [RUNS[module.removeprefix("services.")]]
    kinds: list[type[msgspec.Struct]] = [*(run.settings for run in runs), ProcessSettings]
    environment = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
    parsed = read_settings(kinds, arguments(container, found, folder), environment)
    return list(expand_definitions(runs, parsed)), parsed


def of_deployments(found: list[Manifest]) -> dict[str, dict[str, Any]]:
    """The container of each service, which is the only one in its pod."""
    deployments = select_service_deployments(found).values()
    one = [deployment["spec"]["template"]["spec"]["containers"] for deployment in deployments]
    assert all(len(each) == 1 for each in one)
    return {container["name"]: container for (container,) in one}
