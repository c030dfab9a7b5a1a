"""What ipam can be told."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from libs.common.cloud_config.model import CloudConfig
from libs.common.settings.flags import (
    ALLOCATE_NODE_CIDRS,
    CIDR_ALLOCATOR_TYPE,
    CLOUD_CONFIG,
    CLUSTER_CIDR,
    CONTROLLERS,
    NODE_CIDR_MASK_SIZE,
    NODE_CIDR_MASK_SIZE_IPV4,
    NODE_CIDR_MASK_SIZE_IPV6,
    NODE_STATUS_UPDATE_FREQUENCY,
    OBSERVE_ONLY,
    POD_CIDRS,
    RENEW_DEADLINE,
    SERVICE_CLUSTER_IP_RANGE,
    Flag,
)
from libs.common.settings.reference_flags import allocates_pod_cidrs
from services.ipam.effective_networks import NetworkFlags, validate_network_flags
from services.ipam.pool_selection import Allocator


class IpamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What ipam can be told."""

    observe_only: Annotated[bool, OBSERVE_ONLY] = False
    controllers: Annotated[tuple[str, ...], CONTROLLERS] = ("*",)
    allocate_node_cidrs: Annotated[bool, ALLOCATE_NODE_CIDRS] = False
    cluster_cidr: Annotated[tuple[str, ...], CLUSTER_CIDR] = ()
    service_cluster_ip_range: Annotated[tuple[str, ...], SERVICE_CLUSTER_IP_RANGE] = ()
    cidr_allocator_type: Annotated[Allocator, CIDR_ALLOCATOR_TYPE] = "RangeAllocator"
    node_cidr_mask_size: Annotated[int, NODE_CIDR_MASK_SIZE] = 0
    node_cidr_mask_size_ipv4: Annotated[int, NODE_CIDR_MASK_SIZE_IPV4] = 0
    node_cidr_mask_size_ipv6: Annotated[int, NODE_CIDR_MASK_SIZE_IPV6] = 0
    quarantine_seconds: Annotated[
        float,
        Flag(
            "pod-cidr-quarantine",
            "How long the block of a Node that is gone is given to nobody.",
            POD_CIDRS,
            at_least=1.0,
        ),
    ] = 600.0
    cloud_config: Annotated[Path | None, CLOUD_CONFIG] = None  # followed: its pools may change
    file: CloudConfig = CloudConfig()  # what it said at the start
    file_poll_seconds: float = 1.0
    resync_seconds: Annotated[float, NODE_STATUS_UPDATE_FREQUENCY] = 300.0
    # Nothing is written while no leader has been heard for that long: another one may be at work elsewhere.
    leader_silence_seconds: Annotated[float, RENEW_DEADLINE] = 10.0
    in_flight: Annotated[
        int,
        Flag("ipam-in-flight", "Nodes served at the same time; they share writes.", POD_CIDRS, at_least=1),
    ] = 256

    @property
    def is_enabled(self) -> bool:
        """Whether pod CIDRs are to be allocated."""
        return allocates_pod_cidrs(self.controllers, allocate_node_cidrs=self.allocate_node_cidrs)

    @property
    def network_flags(self) -> NetworkFlags:
        """What the flags say of networks and masks."""
        return NetworkFlags(
            cluster_cidrs=self.cluster_cidr,
            service_cidrs=self.service_cluster_ip_range,
            mask_size=self.node_cidr_mask_size,
            mask_size_ipv4=self.node_cidr_mask_size_ipv4,
            mask_size_ipv6=self.node_cidr_mask_size_ipv6,
        )

    @property
    def quarantine(self) -> timedelta:
        """How long a block rests."""
        return timedelta(seconds=self.quarantine_seconds)

    def problems(self) -> tuple[str, ...]:
        """What cannot be obeyed, or contradicts itself."""
        return validate_network_flags(self.network_flags)
