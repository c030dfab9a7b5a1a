"""Settings of ipam."""

from datetime import timedelta
from typing import Annotated

from libs.common.contract.controllers import allocates_pod_cidrs
from libs.common.settings import flags
from libs.common.settings.cloud_config_reloader import CloudConfigSettings
from services.ipam.core.effective_networks import NetworkFlags, validate_network_flags
from services.ipam.core.pools import Allocator


class IpamSettings(CloudConfigSettings, frozen=True, kw_only=True):
    """Settings of ipam."""

    controllers: Annotated[tuple[str, ...], flags.CONTROLLERS] = ("*",)
    allocate_node_cidrs: Annotated[bool, flags.ALLOCATE_NODE_CIDRS] = False
    cluster_cidr: Annotated[tuple[str, ...], flags.CLUSTER_CIDR] = ()
    service_cluster_ip_range: Annotated[tuple[str, ...], flags.SERVICE_CLUSTER_IP_RANGE] = ()
    cidr_allocator_type: Annotated[Allocator, flags.CIDR_ALLOCATOR_TYPE] = "RangeAllocator"
    node_cidr_mask_size: Annotated[int, flags.NODE_CIDR_MASK_SIZE] = 0
    node_cidr_mask_size_ipv4: Annotated[int, flags.NODE_CIDR_MASK_SIZE_IPV4] = 0
    node_cidr_mask_size_ipv6: Annotated[int, flags.NODE_CIDR_MASK_SIZE_IPV6] = 0
    quarantine_seconds: Annotated[
        float,
        flags.Flag(
            "pod-cidr-quarantine",
            "How long no Node gets the block of a deleted Node.",
            flags.POD_CIDRS,
            at_least=1.0,
        ),
    ] = 600.0
    resync_seconds: Annotated[float, flags.NODE_STATUS_UPDATE_FREQUENCY] = 300.0
    # ipam writes nothing after that long without Leading: another leader may be at work elsewhere.
    leader_silence_seconds: Annotated[float, flags.RENEW_DEADLINE] = 10.0
    in_flight: Annotated[
        int,
        flags.Flag(
            "ipam-in-flight",
            "Nodes processed at the same time; they share writes.",
            flags.POD_CIDRS,
            at_least=1,
        ),
    ] = 256

    @property
    def is_enabled(self) -> bool:
        """Whether this process allocates pod CIDRs."""
        return allocates_pod_cidrs(self.controllers, allocate_node_cidrs=self.allocate_node_cidrs)

    @property
    def network_flags(self) -> NetworkFlags:
        """The flags about networks and masks."""
        return NetworkFlags(
            cluster_cidrs=self.cluster_cidr,
            service_cidrs=self.service_cluster_ip_range,
            mask_size=self.node_cidr_mask_size,
            mask_size_ipv4=self.node_cidr_mask_size_ipv4,
            mask_size_ipv6=self.node_cidr_mask_size_ipv6,
        )

    @property
    def quarantine(self) -> timedelta:
        """How long a block of a deleted Node stays unused."""
        return timedelta(seconds=self.quarantine_seconds)

    def problems(self) -> tuple[str, ...]:
        """Return the invalid and contradictory settings."""
        return validate_network_flags(self.network_flags)
