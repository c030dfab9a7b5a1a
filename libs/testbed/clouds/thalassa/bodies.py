"""The bodies of writes, with the fields of the Go client's types; all else is refused."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

Name = Annotated[str, Meta(min_length=1)]
Port = Annotated[int, Meta(ge=1, le=65535)]
_Protocol = Literal["tcp", "udp", "http", "https", "grpc", "quic"]
_Count = Annotated[int, Meta(ge=0, lt=2**32)]


class Refusal(Exception):
    """A request that the API refuses without an effect."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message


class _Body(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A request; `description`, labels and annotations are of every object."""

    name: Name
    description: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class ListenerBody(_Body, kw_only=True):
    """A port, to create or to replace."""

    port: Port
    protocol: _Protocol
    target_group: Name
    max_connections: _Count | None = None
    connection_idle_timeout: _Count | None = None
    allowed_sources: list[str] | None = None  # None, like an empty list, allows all addresses

    def __post_init__(self) -> None:
        for source in self.allowed_sources or ():
            ipaddress.ip_network(source)


class HealthCheck(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A check, within the limits that the Go client documents."""

    protocol: _Protocol
    port: Port
    path: str
    period_seconds: Annotated[int, Meta(ge=5, le=300)]
    timeout_seconds: Annotated[int, Meta(ge=1, le=300)]
    unhealthy_threshold: Annotated[int, Meta(ge=1, le=10)]
    healthy_threshold: Annotated[int, Meta(ge=1, le=10)]


class TargetGroupBody(_Body, kw_only=True):
    """A target group to replace."""

    target_port: Port
    protocol: _Protocol
    target_selector: dict[str, str] | None = None
    enable_proxy_protocol: bool | None = None
    loadbalancing_policy: Literal["ROUND_ROBIN", "RANDOM", "MAGLEV"] | None = None
    health_check: HealthCheck | None = None


class NewTargetGroup(TargetGroupBody, kw_only=True):
    """A target group to create."""

    vpc: Name


class BalancerBody(_Body, kw_only=True):
    """A load balancer to replace; what is unset stays."""

    delete_protection: bool = False
    subnet: Name | UnsetType = UNSET
    security_group_attachments: list[str] | UnsetType = UNSET
    reserved_ip: str | UnsetType = msgspec.field(name="reservedIpId", default=UNSET)  # "" detaches it


class NewBalancer(BalancerBody, kw_only=True):
    """A load balancer to create, of which the API needs a subnet."""

    internal_loadbalancer: bool = False
    listeners: list[ListenerBody] | None = None


class Target(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A machine, or an endpoint, which this cloud does not have."""

    server_identity: str = ""
    endpoint_identity: str = ""


class Targets(msgspec.Struct, forbid_unknown_fields=True):
    """All targets of a group. The Go client sends its identity again."""

    attachments: list[Target]
    group: str = msgspec.field(name="TargetGroupID", default="")


BodyT = TypeVar("BodyT", bound=msgspec.Struct)


def read_body(body: bytes, form: type[BodyT]) -> BodyT:
    """Return the body. Raises Refusal if it has another form."""
    try:
        return msgspec.json.decode(body, type=form)
    except msgspec.DecodeError as error:
        raise Refusal(400, str(error)) from error
