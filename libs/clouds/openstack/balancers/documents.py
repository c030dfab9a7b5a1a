"""Objects of Octavia and Neutron, as far as this client reads and writes them."""

from datetime import datetime
from typing import Annotated

import msgspec

from libs.clouds.openstack.responses import UUID

ObjectId = Annotated[str, msgspec.Meta(pattern=f"^{UUID}$")]
_Text = Annotated[str, msgspec.Meta(max_length=40)]  # of a time, which is only compared with itself


class Reference(msgspec.Struct, frozen=True):
    """Another object."""

    id: ObjectId


class LoadBalancer(msgspec.Struct, frozen=True, kw_only=True):
    """A load balancer. Octavia refuses changes unless `provisioning_status` is ACTIVE."""

    id: ObjectId
    name: str
    project_id: str
    created_at: datetime  # without a zone: UTC
    updated_at: datetime | None = None  # also when its state changes
    provisioning_status: str
    vip_address: str | None = None
    vip_port_id: ObjectId | None = None
    tags: tuple[str, ...]
    listeners: tuple[Reference, ...] = ()


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a load balancer. Timeouts are in milliseconds; -1 is no limit of connections."""

    id: ObjectId
    protocol: str
    protocol_port: int
    loadbalancers: tuple[Reference, ...]
    default_pool_id: ObjectId | None = None
    connection_limit: int
    timeout_client_data: int
    timeout_member_connect: int
    timeout_member_data: int
    timeout_tcp_inspect: int
    allowed_cidrs: tuple[str, ...] | None  # None or empty: all addresses
    insert_headers: dict[str, str]
    tags: tuple[str, ...]


class SessionPersistence(msgspec.Struct, frozen=True):
    """How clients stay at their member."""

    type: str


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The members behind a port."""

    id: ObjectId
    protocol: str
    lb_algorithm: str
    session_persistence: SessionPersistence | None = None
    loadbalancers: tuple[Reference, ...]
    members: tuple[Reference, ...]
    updated_at: _Text | None  # also when a member changes
    tags: tuple[str, ...]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A target of a pool. Without a port of its own, the monitor asks at `protocol_port`."""

    id: ObjectId
    address: str
    protocol_port: int
    subnet_id: ObjectId | None = None
    monitor_port: int | None = None
    weight: int = 1


class HealthMonitor(msgspec.Struct, frozen=True, kw_only=True):
    """How Octavia finds out whether members answer. Times are in seconds."""

    id: ObjectId
    type: str
    delay: int
    timeout: int
    max_retries: int
    max_retries_down: int
    url_path: str | None = None
    expected_codes: str | None = None
    pools: tuple[Reference, ...]


class FloatingIp(msgspec.Struct, frozen=True, kw_only=True):
    """A public address, which belongs to a port while it has one. Ours has our tags in its description."""

    id: ObjectId
    project_id: str
    floating_ip_address: str
    floating_network_id: ObjectId
    port_id: ObjectId | None
    description: str
    created_at: datetime
    revision_number: int | None = None  # grows with each change


class ObservedPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of ours with its parts."""

    pool: Pool
    members: tuple[Member, ...]
    monitor: HealthMonitor | None


class ObservedBalancer(msgspec.Struct, frozen=True, kw_only=True):
    """A load balancer, its parts with our tags, and the floating addresses that may be at it."""

    balancer: LoadBalancer
    listeners: tuple[Listener, ...] = ()
    pools: tuple[ObservedPool, ...] = ()
    floating_ips: tuple[FloatingIp, ...] = ()  # all of the project
