"""The values for tests of the chart: profiles, old values, another name in another namespace."""

import functools
from collections.abc import Iterator
from typing import Any

import msgspec

from libs.testbed.helm.chart import (
    ChartValues,
    Manifest,
    render_manifests,
    select_service_deployments,
)
from libs.testbed.helm.renders import PROFILES as FOLDER

# Old values name the reference's image, which the chart rejects: an operator who migrates names another one.
_REFERENCE = ChartValues(files=(FOLDER / "reference-values.yaml",))
ZONE = "topology.kubernetes.io/zone"
PUSHED: dict[str, Any] = {"image.repository": "registry.example.com/talos-cloud-controller-manager"}
PROFILES: dict[str, ChartValues] = {
    path.stem.removesuffix("-values"): ChartValues(files=(path,)) for path in sorted(FOLDER.glob("*.yaml"))
} | {
    "reference": msgspec.structs.replace(_REFERENCE, overrides=PUSHED),
    "daemonset": ChartValues(overrides={"daemonSet.enabled": True}),
    "reference-daemonset": msgspec.structs.replace(
        _REFERENCE, overrides=PUSHED | {"daemonSet.enabled": True}
    ),
    "elsewhere": ChartValues(
        files=(FOLDER / "ha-values.yaml",),
        overrides={
            "serviceAccount.name": "ours",
            "enabledControllers": ["*", "nodeipam", "cloud-node-lifecycle"],
            "networkPolicy.egress.enabled": True,
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
