"""The settings of the metadata service."""

from pathlib import Path
from typing import Annotated

import msgspec

from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import (
    CSR_APPROVAL,
    NODE_IPAM,
    NODE_LIFECYCLE,
    NODE_ROUTE,
    allocates_pod_cidrs,
    is_controller_selected,
)
from libs.common.settings.flags import (
    ALLOCATE_NODE_CIDRS,
    CLOUD_CONFIG,
    CLOUD_METADATA_ACCOUNTS,
    CLUSTER_NAME_FALLBACKS,
    CONTROLLERS,
    METADATA_REPUBLISH_INTERVAL,
    NODE_STATUS_UPDATE_FREQUENCY,
    PREFER_IPV6,
    TALOS,
    TALOS_ENDPOINTS,
    TALOSCONFIG,
    WITHOUT_TALOS,
    Flag,
    find_metadata_account_problems,
)


class MetadataSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which machines to query, how often, and how many at once."""

    talosconfig: Annotated[Path | None, TALOSCONFIG] = None
    talos_endpoints: Annotated[str, TALOS_ENDPOINTS] = ""
    cluster_name_fallbacks: Annotated[bool, CLUSTER_NAME_FALLBACKS] = False
    without_talos: Annotated[bool, WITHOUT_TALOS] = False
    controllers: Annotated[tuple[str, ...], CONTROLLERS] = ("*",)
    allocate_node_cidrs: Annotated[bool, ALLOCATE_NODE_CIDRS] = False
    prefer_ipv6: Annotated[bool, PREFER_IPV6] = False
    cloud_config_file: Annotated[Path | None, CLOUD_CONFIG] = None  # followed for changes
    cloud_config: CloudConfig = CloudConfig()  # its content at the start
    metadata_accounts: Annotated[tuple[str, ...], CLOUD_METADATA_ACCOUNTS] = ()
    node_status_update_frequency_seconds: Annotated[float, NODE_STATUS_UPDATE_FREQUENCY] = 300.0
    query_timeout_seconds: Annotated[
        float,
        Flag("talos-query-timeout", "Time limit for all queries of one machine.", TALOS, at_least=0.1),
    ] = 5.0
    max_concurrent_queries: Annotated[
        int,
        Flag(
            "talos-max-concurrent-queries",
            "How many machines metadata queries at the same time. Queries slower than a second do not count "
            "towards the limit.",
            TALOS,
            at_least=1,
        ),
    ] = 64
    watched_machines: Annotated[
        int,
        Flag(
            "talos-watched-machines",
            "How many machines metadata watches, to receive their changes at once. It polls the others at "
            "--node-status-update-frequency. Each watch needs three streams, four with the node lifecycle "
            "controller.",
            TALOS,
            at_least=0,
        ),
    ] = 1000
    watches_opened_after_seconds: Annotated[
        float,
        Flag(
            "talos-watches-opened-after",
            "metadata opens watches once no new machine has come for this time, or after 30 s: queries of "
            "joining nodes come first.",
            TALOS,
            at_least=0.0,
        ),
    ] = 1.0
    watches_opened_per_second: Annotated[
        float,
        Flag(
            "talos-watches-opened-per-second",
            "How many watches metadata opens per second.",
            TALOS,
            at_least=0.1,
        ),
    ] = 20.0
    talos_resync_seconds: Annotated[
        float,
        Flag(
            "talos-resync-period",
            "How often metadata also queries a watched machine: a watch on a half-open connection stays "
            "silent. metadata reopens a watch that is silent for this period.",
            TALOS,
            at_least=1.0,
        ),
    ] = 1800.0
    republish_interval_seconds: Annotated[float, METADATA_REPUBLISH_INTERVAL] = 300.0
    probe_seconds: Annotated[
        float,
        Flag(
            "talos-probe-period",
            "How often metadata polls one machine while at least half of the machines are unreachable.",
            TALOS,
            at_least=0.1,
        ),
    ] = 2.0

    def problems(self) -> tuple[str, ...]:
        """Return invalid flags and contradictions between flags."""
        problems = find_metadata_account_problems(self.metadata_accounts)
        if not (self.without_talos and self._is_ipam_enabled):
            return problems
        flag = f"--{ALLOCATE_NODE_CIDRS.name}" if self.allocate_node_cidrs else f"--controllers={NODE_IPAM}"
        why = "ipam allocates no pod CIDR before machines report their networks"
        return (f"--without-talos and {flag} contradict one another: {why}", *problems)

    @property
    def serves_ipam(self) -> bool:
        """Whether ipam runs and needs the gateways of machines."""
        return self._is_ipam_enabled and not self.without_talos

    @property
    def _is_ipam_enabled(self) -> bool:
        return allocates_pod_cidrs(self.controllers, allocate_node_cidrs=self.allocate_node_cidrs)

    @property
    def serves_lifecycle(self) -> bool:
        """Whether lifecycle runs and needs the stage of machines and their replacements."""
        return is_controller_selected(self.controllers, NODE_LIFECYCLE) and not self.without_talos

    @property
    def publishes_networks(self) -> bool:
        """Whether to poll the cluster's networks.

        ipam allocates no Service address to pods, and csr approves none for nodes. No route leaves the pod
        networks.
        """
        needs = (is_controller_selected(self.controllers, each) for each in (CSR_APPROVAL, NODE_ROUTE))
        return self.serves_ipam or (any(needs) and not self.without_talos)
