"""Bodies of requests to the API, and how they are read."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from libs.testbed.clouds.hcloud.errors import Refusal
from libs.testbed.clouds.hcloud.objects import Document

Port = Annotated[int, Meta(ge=1, le=65535)]
Name = Annotated[str, Meta(min_length=1)]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request. What is unset was not sent."""


class HttpBody(Body):
    """The HTTP part of a service."""

    cookie_name: str | UnsetType = UNSET
    cookie_lifetime: int | UnsetType = UNSET
    certificates: list[int] | UnsetType = UNSET
    redirect_http: bool | UnsetType = UNSET
    sticky_sessions: bool | UnsetType = UNSET
    timeout_idle: int | UnsetType = UNSET


class CheckHttpBody(Body):
    """The HTTP part of a health check; a domain of null sends no host header."""

    domain: str | UnsetType | None = UNSET
    path: str | UnsetType = UNSET
    response: str | UnsetType = UNSET
    status_codes: list[str] | UnsetType = UNSET
    tls: bool | UnsetType = UNSET


class CheckBody(Body):
    """A health check; times in seconds."""

    protocol: Literal["tcp", "http"] | UnsetType = UNSET
    port: Port | UnsetType = UNSET
    interval: Annotated[int, Meta(ge=3, le=60)] | UnsetType = UNSET
    timeout: Annotated[int, Meta(ge=1, le=60)] | UnsetType = UNSET
    retries: Annotated[int, Meta(ge=1, le=5)] | UnsetType = UNSET
    http: CheckHttpBody | UnsetType = UNSET


class ServiceBody(Body):
    """A service to add, or what to change of one."""

    protocol: Literal["tcp", "http", "https"] | UnsetType = UNSET
    listen_port: Port | UnsetType = UNSET
    destination_port: Port | UnsetType = UNSET
    proxyprotocol: bool | UnsetType = UNSET
    http: HttpBody | UnsetType = UNSET
    health_check: CheckBody | UnsetType = UNSET


class IdBody(Body):
    """A reference to a server."""

    id: int


class IpBody(Body):
    """A machine outside of the cloud."""

    ip: str


class SelectorBody(Body):
    """A selector of servers."""

    selector: str


class TargetBody(Body):
    """A target to add or to remove."""

    type: Literal["server", "label_selector", "ip"]
    server: IdBody | None = None
    label_selector: SelectorBody | None = None
    ip: IpBody | None = None
    use_private_ip: bool | None = None


class AlgorithmBody(Body):
    """An algorithm."""

    type: Literal["round_robin", "least_connections"]


class CreateBalancerBody(Body):
    """A load balancer to create."""

    name: Name
    load_balancer_type: str | int
    algorithm: AlgorithmBody | None = None
    location: str | int | None = None
    network_zone: str | None = None
    labels: dict[str, str] = {}
    network: int | None = None
    public_interface: bool | None = None
    services: list[ServiceBody] = []
    targets: list[TargetBody] = []


class AttachBody(Body):
    """A network, and where in it."""

    network: int
    ip: str | None = None
    ip_range: str | None = None


class DetachBody(Body):
    """A network."""

    network: int


class ListenPortBody(Body):
    """The port of a service."""

    listen_port: Port


class TypeBody(Body):
    """A type by name or id."""

    load_balancer_type: str | int


class ProtectionBody(Body):
    """Whether to refuse deletion."""

    delete: bool


class DnsPtrBody(Body):
    """A name for an address; null is the default."""

    ip: str
    dns_ptr: str | None


class UpdateBody(Body):
    """What to change of an object; labels replace all labels."""

    name: Name | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET


class RouteBody(Body):
    """A route of a network."""

    destination: str
    gateway: str


class AddSubnetBody(Body):
    """A subnet of a network."""

    type: Literal["cloud", "server"]
    network_zone: str
    ip_range: str


class DeleteSubnetBody(Body):
    """The range of a subnet."""

    ip_range: str


class CertificateBody(Body):
    """A certificate to create."""

    name: Name
    type: Literal["uploaded", "managed"] = "uploaded"
    certificate: str | None = None
    private_key: str | None = None
    domain_names: list[str] = []
    labels: dict[str, str] = {}


BodyT = TypeVar("BodyT", bound=Body)


def read_body(sent: Document, body: type[BodyT]) -> BodyT:
    """Return the body. Raises Refusal if it has another form."""
    try:
        return msgspec.convert(sent, body)
    except msgspec.ValidationError as error:
        _, _, path = str(error).partition("`$")
        raise Refusal("invalid_input", str(error), path.strip("`.") or "body") from error
