"""Load balancers and actions of the Hetzner Cloud API, as far as this client reads and writes them."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

ObjectId = Annotated[int, msgspec.Meta(gt=0)]


class HealthCheckHttp(msgspec.Struct, frozen=True, kw_only=True):
    """The request of an HTTP health check; `domain` None sends no host header."""

    domain: str | None = None
    path: str = "/"
    response: str | None = ""
    status_codes: tuple[str, ...] = ()
    tls: bool = False


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A health check; `protocol` is tcp or http, times are in seconds."""

    protocol: str
    port: int
    interval: int
    timeout: int
    retries: int
    http: HealthCheckHttp | None = None


class ServiceHttp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a service that speaks HTTP; None leaves the value to the cloud."""

    cookie_name: str | None = None
    cookie_lifetime: int | None = None
    timeout_idle: int | None = None
    certificates: tuple[int, ...] | None = None
    redirect_http: bool | None = None
    sticky_sessions: bool | None = None


class Service(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A port of a load balancer. `protocol` is tcp, http or https."""

    protocol: str
    listen_port: int
    destination_port: int
    proxyprotocol: bool
    http: ServiceHttp | None = None
    health_check: HealthCheck | None = None


class Resource(msgspec.Struct, frozen=True):
    """A reference to an object."""

    id: ObjectId


class TargetIp(msgspec.Struct, frozen=True):
    """A reference to a machine outside of the cloud."""

    ip: str


class TargetSelector(msgspec.Struct, frozen=True):
    """A selector of servers by their labels."""

    selector: str


class LoadBalancerTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A target; the field that `type` names is set."""

    type: Literal["server", "ip", "label_selector"]
    server: Resource | None = None
    ip: TargetIp | None = None
    label_selector: TargetSelector | None = None
    use_private_ip: bool = False


class LoadBalancerType(msgspec.Struct, frozen=True):
    """A size, with its limits."""

    name: str
    max_services: int
    max_targets: int


class Algorithm(msgspec.Struct, frozen=True):
    """How a target is selected."""

    type: str


class PublicAddress(msgspec.Struct, frozen=True):
    """An address that clients reach over the internet."""

    ip: str | None = None
    dns_ptr: str | None = None


class PublicNet(msgspec.Struct, frozen=True):
    """The public interface."""

    enabled: bool
    ipv4: PublicAddress
    ipv6: PublicAddress


class PrivateNet(msgspec.Struct, frozen=True):
    """The attachment to a network."""

    network: ObjectId
    ip: str


class Protection(msgspec.Struct, frozen=True):
    """Operations that the cloud refuses."""

    delete: bool


class LoadBalancer(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a load balancer that this client reads."""

    id: ObjectId
    name: str
    created: datetime
    labels: dict[str, str]
    protection: Protection
    load_balancer_type: LoadBalancerType
    algorithm: Algorithm
    public_net: PublicNet
    private_net: tuple[PrivateNet, ...]
    services: tuple[Service, ...]
    targets: tuple[LoadBalancerTarget, ...]


class IssuanceError(msgspec.Struct, frozen=True):
    """Why the cloud could not issue a certificate."""

    code: str = ""


class CertificateStatus(msgspec.Struct, frozen=True):
    """What has become of a managed certificate: `issuance` is pending, completed or failed."""

    issuance: str = ""
    error: IssuanceError | None = None


class NamedObject(msgspec.Struct, frozen=True):
    """A certificate or network of the project; names are unique. A network has the first two fields only."""

    id: ObjectId
    name: str
    domain_names: tuple[str, ...] = ()
    status: CertificateStatus | None = None  # None: an uploaded one


class ManagedCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """The body that creates a certificate, which the cloud issues and renews."""

    name: str
    domain_names: tuple[str, ...]
    labels: dict[str, str]
    type: Literal["managed"] = "managed"


class ActionError(msgspec.Struct, frozen=True):
    """Why an action failed."""

    code: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,64}$")]


class Action(msgspec.Struct, frozen=True):
    """A change that the cloud makes after it has answered."""

    id: ObjectId
    command: str
    status: Literal["running", "success", "error"]
    error: ActionError | None = None
