"""Defines flags, and the flags that more than one service takes."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.bus.stream_limits import (
    MAX_MESSAGE_AGE_TEXT,
    MAX_REPUBLISH_INTERVAL,
    MAX_RESYNC_INTERVAL_TEXT,
)
from libs.common.contract.instance_metadata import parse_metadata_accounts
from libs.common.contract.services import SERVICES


class Flag(msgspec.Struct, frozen=True):
    """The source of a settings field, in its `Annotated[...]`.

    Precedence: `config` (a path in the --cloud-config file) > command line > environment > default. The
    reference also prefers its file.
    """

    name: str  # without dashes; "" = not on the command line
    help: str
    group: str
    env: str = ""  # "NAME_*" = all variables with that prefix, as a list of NAME_X=value
    config: str = ""  # such as "global.clusterName"
    at_least: float | None = None
    at_most: float | None = None
    is_boolean: bool = False  # of shared flags: no value follows it, also in a service that does not take it


NODES: Final = "Nodes"
CERTIFICATES: Final = "Kubelet serving certificates"
POD_CIDRS: Final = "Pod CIDRs"
SERVICE_NETWORKS: Final = "Service networks (for pod CIDRs and kubelet serving certificates)"
LIFECYCLE: Final = "Nodes of machines that are gone"
CLOUD: Final = "Cloud account"
LOAD_BALANCERS: Final = "Load balancers of a cloud account"
CONSOLE: Final = "Live console"
ROUTES: Final = "Routes of a cloud account"
TALOS: Final = "Talos"
LEADER_ELECTION: Final = "Leader election"
KUBERNETES: Final = "Kubernetes"
BUS: Final = "Messages"
HEALTH_AND_METRICS: Final = "Health and metrics"
LOGS_AND_TRACES: Final = "Logs and traces"

OBSERVE_ONLY: Final = Flag(
    "observe-only",
    "Write nothing to Kubernetes and acquire no Lease: decisions are only logged and published. Use it "
    "beside another cloud controller manager before the switch.",
    NODES,
    is_boolean=True,
)
NODE_STATUS_UPDATE_FREQUENCY: Final = Flag(
    "node-status-update-frequency",
    "How often all objects are processed again, changed or not. The watcher publishes them at least every "
    f"{MAX_RESYNC_INTERVAL_TEXT}, because the stream drops messages after {MAX_MESSAGE_AGE_TEXT}.",
    NODES,
    at_least=1.0,
)
CLUSTER_NAME: Final = Flag(
    "cluster-name",
    "Name of the cluster. Without --cluster-name-fallbacks it has no effect, as in the reference controller.",
    NODES,
    config="global.clusterName",
)
CLUSTER_NAME_FALLBACKS: Final = Flag(
    "cluster-name-fallbacks",
    "Use four sources for the label node.cloudprovider.kubernetes.io/clustername. Order: global.clusterName "
    "of the --cloud-config file, --cluster-name, talosconfig, machine config. Without this flag only the "
    "first and the third.",
    NODES,
    is_boolean=True,
)
CLOUD_CONFIG: Final = Flag(
    "cloud-config",
    "YAML file in the format of the reference controller: global.clusterName, global.preferIPv6, and rules "
    "for labels, annotations, taints and metadata under transformations. ipam.pools has pod networks; "
    "ownership selects the Nodes to manage. Changes take effect within 15 s; a file with mistakes is "
    "reported and not used.",
    NODES,
)
_SELECTABLE: Final = [spec for spec in SERVICES if spec.controller.name]
CONTROLLERS: Final = Flag(
    "controllers",
    "Controllers to run, with the names of the reference controller. "
    + "; ".join(f"{spec.controller.display_name} {spec.description}" for spec in _SELECTABLE)
    + "; in cloud accounts, service-lb-controller makes the load balancers of Services"
    + " and node-route-controller the routes to the pods of Nodes"
    + ". `*` selects "
    + " and ".join(spec.controller.display_name for spec in _SELECTABLE if spec.controller.in_wildcard)
    + "; `-name` removes one from that: `*,-node-csr-approval`.",
    NODES,
)
PREFER_IPV6: Final = Flag(
    "",
    "Prefer IPv6 to IPv4 where both are possible.",
    NODES,
    config="global.preferIPv6",
)

BIND_ADDRESS: Final = Flag(
    "bind-address",
    "Address to listen on. 0.0.0.0 and :: both mean all addresses of both families, or only IPv4 if "
    "the host has no IPv6.",
    HEALTH_AND_METRICS,
)
SECURE_SERVING: Final = Flag(
    "secure-serving", "Serve HTTPS; false = plain HTTP, for debugging.", HEALTH_AND_METRICS
)
VERBOSITY: Final = Flag("v", "Log verbosity: up to 2 = normal, from 3 = debug.", LOGS_AND_TRACES, at_least=0)

ALLOCATE_NODE_CIDRS: Final = Flag(
    "allocate-node-cidrs",
    "Allocate pod CIDRs to Nodes, as node-ipam-controller in --controllers does. No other allocator may run "
    "in the same cluster: kube-controller-manager needs -node-ipam-controller in --controllers.",
    POD_CIDRS,
    is_boolean=True,
)
CLUSTER_CIDR: Final = Flag(
    "cluster-cidr",
    "Pod networks of the cluster, one or one of each family, the primary family first. Default: those "
    "in the machine config of a control plane.",
    POD_CIDRS,
)
SERVICE_CLUSTER_IP_RANGE: Final = Flag(
    "service-cluster-ip-range",
    "Service networks of the cluster. No pod CIDR overlaps them, and no kubelet gets a certificate for an "
    "address in them. The networks in the machine config of a control plane are added. Without this flag, "
    "no pod CIDR is allocated and no certificate with an IP address is approved before a control plane "
    "reports them.",
    SERVICE_NETWORKS,
)
CIDR_ALLOCATOR_TYPE: Final = Flag(
    "cidr-allocator-type",
    "RangeAllocator: a block of each pod network. CloudAllocator: only initialized Nodes; the IPv6 block "
    "is from the Node's own subnet, if it has one.",
    POD_CIDRS,
)
NODE_CIDR_MASK_SIZE: Final = Flag(
    "node-cidr-mask-size",
    "Prefix length of a Node's block in a cluster with one family. 0 = not set.",
    POD_CIDRS,
)
NODE_CIDR_MASK_SIZE_IPV4: Final = Flag(
    "node-cidr-mask-size-ipv4",
    "Prefix length of a Node's IPv4 block, 12 to 32. 0 = from the machine config, otherwise 24.",
    POD_CIDRS,
)
NODE_CIDR_MASK_SIZE_IPV6: Final = Flag(
    "node-cidr-mask-size-ipv6",
    "Prefix length of a Node's IPv6 block, 48 to 128. 0 = from the machine config, otherwise 80.",
    POD_CIDRS,
)

DELETE_PREEMPTED_GCP_SPOT: Final = Flag(
    "delete-preempted-gcp-spot",
    "Delete the Nodes of GCP spot machines as soon as they are not ready, as the reference controller does: "
    "a preempted machine returns with another address. The limit for all deletions applies. "
    "Default: false, with a warning at startup.",
    LIFECYCLE,
    is_boolean=True,
)

CLOUD_METADATA_ACCOUNTS: Final = Flag(
    "cloud-metadata-accounts",
    "Cloud accounts that supply providerID, region, zone and instance type of their servers on the platforms "
    "nocloud and metal, as provider/account, such as hcloud/prod. Their Nodes stay uninitialized until then. "
    "metadata queries the SMBIOS of machines for it. Public addresses of a server confirm that a machine is "
    "that server. hcloud/prod/4711 also names the private network in which machines are reached, so that its "
    "addresses confirm, too: by its id at hcloud, by its name at openstack. No other network of the project "
    "may have that name.",
    CLOUD,
)
TALOSCONFIG: Final = Flag(
    "talosconfig",
    "Talos client configuration file. Default: /var/run/secrets/talos.dev/config, then "
    "~/.talos/config. Changes take effect without a restart.",
    TALOS,
    env="TALOSCONFIG",
)
TALOS_ENDPOINTS: Final = Flag(
    "talos-endpoints",
    "Talos API endpoints (host or host:port, comma separated) instead of those in the talosconfig.",
    TALOS,
    env="TALOS_ENDPOINTS",
)
WITHOUT_TALOS: Final = Flag(
    "without-talos",
    "Query no machine: certificate requests are evaluated by the Node object alone, within "
    "--csr-allowed-networks, and Nodes are not changed. No talosconfig is needed. Give metadata and csr "
    "the same value.",
    TALOS,
    is_boolean=True,
)

METADATA_REPUBLISH_INTERVAL: Final = Flag(
    "metadata-republish-interval",
    "How often metadata republishes unchanged facts: the stream drops messages after "
    f"{MAX_MESSAGE_AGE_TEXT}. csr ignores facts published longer ago than twice this interval. Give metadata "
    "and csr the same value.",
    TALOS,
    at_least=1.0,
    at_most=MAX_REPUBLISH_INTERVAL.total_seconds(),
)

LEADER_ELECT: Final = Flag(
    "leader-elect",
    "Require a Lease before any work, so that only one of several replicas leads.",
    LEADER_ELECTION,
    is_boolean=True,
)
LEASE_DURATION: Final = Flag(
    "leader-elect-lease-duration",
    "How long other replicas wait for a leader that does not renew.",
    LEADER_ELECTION,
    at_least=1.0,
)
RENEW_DEADLINE: Final = Flag(
    "leader-elect-renew-deadline",
    "How long the leader retries to renew before it stops; must be shorter than the lease duration.",
    LEADER_ELECTION,
    at_least=0.5,
)
RETRY_PERIOD: Final = Flag(
    "leader-elect-retry-period",
    "Wait between two attempts to acquire or renew the Lease.",
    LEADER_ELECTION,
    at_least=0.1,
)
LEASE_NAME_FLAG: Final = Flag(
    "leader-elect-resource-name",
    "Name of the Lease. The default is the name of the reference controller's Lease, so only one of the two "
    "can lead.",
    LEADER_ELECTION,
)
LEASE_NAMESPACE_FLAG: Final = Flag(
    "leader-elect-resource-namespace", "Namespace of the Lease.", LEADER_ELECTION
)

# Every service accepts all flags of this module, so that one extraArgs can serve all of them.
SHARED_FLAGS: Final = {
    flag.name: flag for flag in tuple(globals().values()) if isinstance(flag, Flag) and flag.name
}


def find_metadata_account_problems(values: Iterable[str]) -> tuple[str, ...]:
    """Return the mistake in the values of CLOUD_METADATA_ACCOUNTS, if there is one."""
    try:
        parse_metadata_accounts(values)
    except ValueError as error:
        return (f"--{CLOUD_METADATA_ACCOUNTS.name}: {error}",)
    return ()
