"""Workloads and other Kubernetes objects of an installation, reduced to the fields in use. Pure."""

from typing import Final

import msgspec

from libs.common.contract.node import ApiObject, ObjectMeta

CHART: Final = "talos-cloud-controller-manager"  # the name label, unless nameOverride changes it
NAME: Final = "app.kubernetes.io/name"
INSTANCE: Final = "app.kubernetes.io/instance"  # the release
COMPONENT: Final = "app.kubernetes.io/component"  # the service of a pod
COLLECTIONS: Final = {
    "Deployment": "deployments",
    "DaemonSet": "daemonsets",
    "StatefulSet": "statefulsets",
}


class Meta(ObjectMeta, frozen=True, kw_only=True, rename="camel"):
    """The metadata of a namespaced object."""

    namespace: str = ""


class EnvironmentVariable(msgspec.Struct, frozen=True, kw_only=True):
    """One element of env; without a value if it comes from elsewhere."""

    name: str
    value: str = ""


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """One container of a pod spec."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvironmentVariable, ...] = ()

    def flag_values(self, flag: str) -> tuple[str, ...]:
        """Return all values of the flag, as `--flag=value` or `--flag value`; "true" without a value."""
        found: list[str] = []
        words = (*self.command, *self.args)
        for at, word in enumerate(words):
            name, equals, value = word.partition("=")
            if not word.startswith("-") or name.lstrip("-").replace("_", "-") != flag:
                continue
            after = words[at + 1] if at + 1 < len(words) else ""
            found.append(value if equals else "true" if not after or after.startswith("-") else after)
        return tuple(found)

    def last_flag_value(self, flag: str, default: str = "") -> str:
        """Return the last value of the flag, which takes effect."""
        return (self.flag_values(flag) or (default,))[-1]

    def is_switched_on(self, flag: str) -> bool:
        """Whether a boolean flag is true."""
        return self.last_flag_value(flag, "false").lower() in ("true", "t", "1")

    @property
    def controllers(self) -> tuple[str, ...]:
        """Return the items of --controllers."""
        items = self.last_flag_value("controllers", "*").split(",")
        return tuple(item.strip() for item in items if item.strip())


class NameReference(msgspec.Struct, frozen=True, kw_only=True):
    """A reference by name."""

    name: str = ""


class SecretVolume(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume from a Secret."""

    secret_name: str = ""


class Volume(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One volume of a pod spec."""

    name: str
    config_map: NameReference | None = None
    secret: SecretVolume | None = None


class PodSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The spec of a pod."""

    service_account_name: str = ""
    node_name: str = ""
    host_network: bool = False
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One element of status.conditions."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The field spec.template of a workload."""

    spec: PodSpec = PodSpec()


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of a workload."""

    replicas: int = 1
    template: PodTemplate = PodTemplate()


class WorkloadStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status of a workload; a DaemonSet counts nodes, the others count replicas."""

    ready_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    conditions: tuple[Condition, ...] = ()


class Workload(ApiObject, frozen=True, kw_only=True):
    """A Deployment, DaemonSet or StatefulSet; `kind` is absent from the items of a list."""

    metadata: Meta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()
    kind: str = ""

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def pod(self) -> PodSpec:
        return self.spec.template.spec

    @property
    def desired_pods(self) -> int:
        """Return the desired number of pods."""
        return self.status.desired_number_scheduled if self.kind == "DaemonSet" else self.spec.replicas

    @property
    def ready_pods(self) -> int:
        """Return the number of ready pods."""
        return self.status.number_ready if self.kind == "DaemonSet" else self.status.ready_replicas

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class TalosAccountSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of a ServiceAccount of talos.dev."""

    roles: tuple[str, ...] = ()


class TalosAccountStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status of a ServiceAccount of talos.dev."""

    failure_reason: str = ""


class TalosAccount(ApiObject, frozen=True, kw_only=True):
    """A ServiceAccount of talos.dev."""

    spec: TalosAccountSpec = TalosAccountSpec()
    status: TalosAccountStatus = TalosAccountStatus()
