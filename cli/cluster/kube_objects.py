"""Workloads, certificate requests and other Kubernetes objects, reduced to the fields in use. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from libs.common.contract.node import ApiObject, ObjectMeta
from libs.common.contract.signing_request import (
    SigningRequest,
    SigningRequestCondition,
    SigningRequestStatus,
    trim_signing_request,
)

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


RequestPhase = Literal["pending", "approved", "denied", "failed"]
_PHASES: Final[Mapping[str, RequestPhase]] = {"Denied": "denied", "Failed": "failed", "Approved": "approved"}
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class CsrCondition(SigningRequestCondition, frozen=True, kw_only=True, rename="camel"):
    """One element of status.conditions."""

    last_update_time: datetime | None = None


class CsrStatus(SigningRequestStatus, frozen=True, kw_only=True):
    """The field `status`."""

    conditions: tuple[CsrCondition, ...] = ()


class CertificateSigningRequest(SigningRequest, frozen=True, kw_only=True):
    """A CertificateSigningRequest with the fields that commands show."""

    status: CsrStatus = CsrStatus()

    @property
    def created(self) -> datetime:
        """Return the creation time, in whole seconds."""
        return self.metadata.creation_timestamp or _LONG_AGO

    def find_condition(self, kind: str) -> CsrCondition | None:
        """Return the condition of this type; None if it is absent."""
        return next((one for one in self.status.conditions if one.type == kind), None)

    @property
    def phase(self) -> tuple[RequestPhase, CsrCondition | None]:
        """Return what has been decided, and the condition that says so."""
        for kind, phase in _PHASES.items():
            if condition := self.find_condition(kind):
                return phase, condition
        return "approved" if self.status.is_issued else "pending", None

    @property
    def signing_request(self) -> SigningRequest:
        """Return the request as the services exchange it."""
        return trim_signing_request(self)


def get_filing_order(request: CertificateSigningRequest) -> tuple[datetime, int, str]:
    """Return a key that sorts requests by their age, the oldest first."""
    return (request.created, request.resource_version_number, request.name)


def find_newest(requests: Iterable[CertificateSigningRequest]) -> CertificateSigningRequest | None:
    """Return the request that was created last, decided or not; None without requests."""
    return max(requests, key=get_filing_order, default=None)
