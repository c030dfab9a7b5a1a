"""Namespaces, workloads, pods, services and Talos's ServiceAccounts: fields that describe an installation.

No controller acts on them: the process that runs the containers of a pod reports its status. Defaults of pod
specs are not simulated.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import field
from msgspec.structs import replace

from libs.testbed.sim_apiserver.objects import Caller, Meta, ResourceKind, Time, validate_metadata
from libs.testbed.sim_apiserver.refusals import Cause, required_value


class _Fields(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Empty fields are not encoded."""


class NamespaceStatus(_Fields, frozen=True, kw_only=True):
    """status of a Namespace."""

    phase: str = ""


class Namespace(_Fields, frozen=True, kw_only=True):
    """A Namespace on the wire, without finalizers."""

    metadata: Meta = field(default_factory=Meta)
    status: NamespaceStatus = field(default_factory=NamespaceStatus)


class Container(_Fields, frozen=True, kw_only=True):
    """One container of a pod spec."""

    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []


class MapVolume(_Fields, frozen=True, kw_only=True):
    """The ConfigMap of a volume."""

    name: str = ""


class SecretVolume(_Fields, frozen=True, kw_only=True):
    """The Secret of a volume."""

    secret_name: str = ""


class Volume(_Fields, frozen=True, kw_only=True):
    """One volume of a pod spec."""

    name: str
    config_map: MapVolume | None = None
    secret: SecretVolume | None = None


class PodSpec(_Fields, frozen=True, kw_only=True):
    """spec of a Pod."""

    node_name: str = ""
    host_network: bool = False
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    termination_grace_period_seconds: int | None = None
    containers: list[Container] = []
    volumes: list[Volume] = []


class StatusCondition(_Fields, frozen=True, kw_only=True):
    """One element of status.conditions."""

    type: str
    status: str = ""
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


class RunningState(_Fields, frozen=True, kw_only=True):
    """A container that runs."""

    started_at: Time | None = None


class ContainerState(_Fields, frozen=True, kw_only=True):
    """The state of a container."""

    running: RunningState | None = None


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One element of status.containerStatuses."""

    name: str
    ready: bool
    restart_count: int
    image: str
    image_id: str = field(name="imageID")
    state: ContainerState = field(default_factory=ContainerState)


class PodStatus(_Fields, frozen=True, kw_only=True):
    """status of a Pod, which its kubelet writes."""

    phase: str = ""
    conditions: list[StatusCondition] = []
    container_statuses: list[ContainerStatus] = []


class Pod(_Fields, frozen=True, kw_only=True):
    """A Pod on the wire."""

    metadata: Meta = field(default_factory=Meta)
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)


class Selector(_Fields, frozen=True, kw_only=True):
    """The labels of a workload's pods."""

    match_labels: dict[str, str] = {}


class PodTemplate(_Fields, frozen=True, kw_only=True):
    """spec.template of a workload."""

    metadata: Meta = field(default_factory=Meta)
    spec: PodSpec = field(default_factory=PodSpec)


class WorkloadSpec(_Fields, frozen=True, kw_only=True):
    """spec of a workload."""

    replicas: int | None = None
    selector: Selector = field(default_factory=Selector)
    template: PodTemplate = field(default_factory=PodTemplate)


class WorkloadStatus(_Fields, frozen=True, kw_only=True):
    """status of a workload, which its controller writes."""

    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    updated_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0


class Workload(_Fields, frozen=True, kw_only=True):
    """A Deployment, DaemonSet or StatefulSet on the wire."""

    metadata: Meta = field(default_factory=Meta)
    spec: WorkloadSpec = field(default_factory=WorkloadSpec)
    status: WorkloadStatus = field(default_factory=WorkloadStatus)


class ServicePort(_Fields, frozen=True, kw_only=True):
    """One port of a Service."""

    name: str = ""
    port: int = 0


class ServiceSpec(_Fields, frozen=True, kw_only=True):
    """spec of a Service."""

    cluster_ip: str = field(name="clusterIP", default="")
    ports: list[ServicePort] = []


class Service(_Fields, frozen=True, kw_only=True):
    """A Service on the wire."""

    metadata: Meta = field(default_factory=Meta)
    spec: ServiceSpec = field(default_factory=ServiceSpec)


class TalosAccountSpec(_Fields, frozen=True, kw_only=True):
    """The roles that Talos gives to the credential."""

    roles: list[str] = []


class TalosAccount(_Fields, frozen=True, kw_only=True):
    """A ServiceAccount of talos.dev on the wire, as long as Talos reports no failure."""

    metadata: Meta = field(default_factory=Meta)
    spec: TalosAccountSpec = field(default_factory=TalosAccountSpec)


def _validate(new: Any, old: Any | None) -> list[Cause]:
    return validate_metadata(new.metadata, old.metadata if old else None)


def _validate_pod(new: Pod, old: Pod | None) -> list[Cause]:
    return _validate(new, old) + _require_containers(new.spec, "spec.containers")


def _validate_workload(new: Workload, old: Workload | None) -> list[Cause]:
    causes = _validate(new, old)
    if not new.spec.selector.match_labels:
        causes.append(required_value("spec.selector"))
    return causes + _require_containers(new.spec.template.spec, "spec.template.spec.containers")


def _require_containers(spec: PodSpec, where: str) -> list[Cause]:
    return [] if spec.containers else [required_value(where)]


def _create_namespace(new: Namespace, caller: Caller) -> Namespace:
    return make_namespace(new.metadata)


def make_namespace(metadata: Meta) -> Namespace:
    """Return an active Namespace, with the label of its name."""
    labels = {"kubernetes.io/metadata.name": metadata.name, **metadata.labels}
    return Namespace(metadata=replace(metadata, labels=labels), status=NamespaceStatus(phase="Active"))


def _create_pod(new: Pod, caller: Caller) -> Pod:
    return replace(new, status=PodStatus(phase="Pending"))


def _create_workload(new: Workload, caller: Caller) -> Workload:
    one = new.spec.replicas if new.spec.replicas is not None else 1
    return replace(new, spec=replace(new.spec, replicas=one), status=WorkloadStatus())


def _update_part(old: Any, new: Any, subresource: str, caller: Caller) -> Any:
    """Apply an update: the object's own path keeps the status, its status path the spec."""
    return replace(new, spec=old.spec) if subresource == "status" else replace(new, status=old.status)


_STATUS: Final = frozenset({"status"})
NAMESPACES: Final = ResourceKind(
    "namespaces",
    "Namespace",
    Namespace,
    short_names=("ns",),
    on_create=_create_namespace,
    validate=_validate,
)
PODS: Final = ResourceKind(
    "pods",
    "Pod",
    Pod,
    short_names=("po",),
    is_namespaced=True,
    subresources=_STATUS,
    supports_strategic_patch=True,
    on_create=_create_pod,
    on_update=_update_part,
    validate=_validate_pod,
)


def _make_workload_kind(plural: str, kind: str, short_name: str) -> ResourceKind:
    return ResourceKind(
        plural,
        kind,
        Workload,
        group="apps",
        short_names=(short_name,),
        is_namespaced=True,
        subresources=_STATUS,
        on_create=_create_workload,
        on_update=_update_part,
        validate=_validate_workload,
    )


DEPLOYMENTS: Final = _make_workload_kind("deployments", "Deployment", "deploy")
STATEFUL_SETS: Final = _make_workload_kind("statefulsets", "StatefulSet", "sts")
DAEMON_SETS: Final = _make_workload_kind("daemonsets", "DaemonSet", "ds")
SERVICES: Final = ResourceKind(
    "services", "Service", Service, short_names=("svc",), is_namespaced=True, validate=_validate
)
TALOS_ACCOUNTS: Final = ResourceKind(
    "serviceaccounts",
    "ServiceAccount",
    TalosAccount,
    group="talos.dev",
    version="v1alpha1",
    is_namespaced=True,
    validate=_validate,
)
