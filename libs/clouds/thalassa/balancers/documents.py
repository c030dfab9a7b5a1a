"""Load balancers, listeners and target groups, as far as this client reads and writes them."""

from collections.abc import Mapping
from datetime import datetime
from ipaddress import ip_network
from typing import Annotated

import msgspec

from libs.clouds.balancers import Owner
from libs.clouds.thalassa.responses import IDENTITY, Organisation

ObjectId = Annotated[str, msgspec.Meta(pattern=f"^{IDENTITY}$")]
Labels = Mapping[str, str]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]

_CLUSTER = "talos-ccm/cluster"
_SERVICE = "talos-ccm/service-uid"
_ACCOUNT = "talos-ccm/account"
PREPARED = "talos-ccm/prepared"  # it existed before the Service, and stays
PORT = "talos-ccm/port"  # of a target group: the listener that it is for
_OURS = "talos-ccm/"
NATIVE = "k8s.thalassa.cloud/"  # of Thalassa's own controller
_NATIVE_SERVICE = f"{NATIVE}kubernetes-service-uid"


# ---- whose an object is


def build_labels(owner: Owner) -> dict[str, str]:
    """Return the labels that are part of every request which creates an object."""
    return {_CLUSTER: owner.cluster_uid, _SERVICE: owner.service_uid, _ACCOUNT: owner.account}


def build_filter(cluster_uid: str, service_uid: str = "") -> dict[str, str]:
    """Return the query of a list of objects with our labels."""
    labels = {_CLUSTER: cluster_uid} | ({_SERVICE: service_uid} if service_uid else {})
    return {f"matchLabels[{name}]": text for name, text in labels.items()}


def read_owner(labels: Labels | None) -> Owner | None:
    """Return the owner, None without all of its labels."""
    cluster_uid, service_uid, account = ((labels or {}).get(each) for each in (_CLUSTER, _SERVICE, _ACCOUNT))
    if not cluster_uid or not service_uid or not account:
        return None
    return Owner(cluster_uid=cluster_uid, service_uid=service_uid, account=account)


def read_native_uid(labels: Labels | None) -> str:
    """Return the uid of the Service for which Thalassa's own controller has it."""
    return (labels or {}).get(_NATIVE_SERVICE, "")


def has_foreign_labels(labels: Labels | None) -> bool:
    """Whether Thalassa's own controller has it, or a part of our labels is left."""
    names = labels or {}
    is_incomplete = read_owner(names) is None and any(each.startswith(_OURS) for each in names)
    return is_incomplete or any(each.startswith(NATIVE) for each in names)


def remove_labels(labels: Labels | None, *prefixes: str) -> dict[str, str]:
    """Return the labels without ours, and without those that begin with a prefix."""
    return {name: text for name, text in (labels or {}).items() if not name.startswith((_OURS, *prefixes))}


def _normalize(network: str) -> str:
    try:
        return str(ip_network(network, strict=False))
    except ValueError:
        return network


# ---- objects; in Go, an empty list may be null


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    identity: ObjectId


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the cloud finds out whether targets answer. Times are in seconds."""

    protocol: str
    port: int
    path: str = ""
    period_seconds: int
    timeout_seconds: int
    healthy_threshold: int
    unhealthy_threshold: int


class Listener(_Object, frozen=True, kw_only=True):
    """A port of a load balancer; its ports tell the listeners of one load balancer apart."""

    port: int
    protocol: str
    target_group: _Object | None = None  # null where the API leaves it out
    max_connections: int | None = None
    connection_idle_timeout: int | None = None
    allowed_sources: tuple[str, ...] | None = None  # empty: all addresses; null where the API leaves it out

    @property
    def sources(self) -> tuple[str, ...]:
        """The allowed networks in the form of annotations."""
        return tuple(sorted({_normalize(each) for each in self.allowed_sources or ()}))


class Attachment(_Object, frozen=True, kw_only=True):
    """A target of a group: a machine, or an endpoint, which this client never attaches."""

    virtual_machine_instance: _Object | None = None
    endpoint: _Object | None = None

    @property
    def target(self) -> str:
        """The identity of what is attached, "" where the API leaves it out."""
        found = self.virtual_machine_instance or self.endpoint
        return found.identity if found is not None else ""


class TargetGroup(_Object, frozen=True, kw_only=True):
    """The targets behind a port."""

    name: str
    created_at: _Time
    labels: Labels | None = None
    organisation: Organisation | None = None
    target_port: int
    protocol: str
    enable_proxy_protocol: bool | None = None
    loadbalancing_policy: str | None = None
    health_check: HealthCheck | None = None
    attachments: tuple[Attachment, ...] | None = msgspec.field(
        name="loadbalancerTargetGroupAttachments", default=None
    )


class LoadBalancer(_Object, frozen=True, kw_only=True):
    """A load balancer. It can be used when its status is `ready` and it has an address."""

    name: str
    description: str = ""
    created_at: _Time
    labels: Labels | None = None
    annotations: Labels | None = None
    organisation: Organisation | None = None
    status: str
    subnet: _Object | None = None
    external_ip_addresses: tuple[str, ...] | None = None
    internal_ip_addresses: tuple[str, ...] | None = None
    listeners: tuple[Listener, ...] | None = msgspec.field(name="loadbalancerListeners", default=None)
    delete_protection: bool = False
    security_groups: tuple[_Object, ...] | None = None
    reserved_ip_identity: str | None = None


class Network(_Object, frozen=True, kw_only=True):
    """A VPC with its subnets."""

    organisation: Organisation | None = None
    subnets: tuple["Subnet", ...] | None = None


class Subnet(_Object, frozen=True, kw_only=True):
    """A subnet of a VPC; Thalassa's own controller also knows it by its slug."""

    slug: str


class ObservedBalancer(msgspec.Struct, frozen=True, kw_only=True):
    """A load balancer with all its listeners, and the target groups that have its owner's labels."""

    balancer: LoadBalancer
    listeners: tuple[Listener, ...] = ()
    groups: tuple[TargetGroup, ...] = ()
