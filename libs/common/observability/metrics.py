"""Defines all metrics, with the reference's names if it has them. Only this module imports prometheus_client.

Label values are from small fixed sets (services, events, requests, verbs), never names of nodes: the number
of time series must not grow with the cluster.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call]  # it would double the size of counters and histograms

REGISTRY: Final = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

# Time since the creation of a Node, with upstream's buckets: 1, 4 ... 1024 s (k8s.io/cloud-provider).
_SINCE_CREATION: Final = tuple(float(4**i) for i in range(6))
_HANDLING: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_END_TO_END: Final = (*_HANDLING, 60.0, 300.0)


def _counter(name: str, help_text: str, *labels: str) -> Counter:
    return Counter(name, help_text, labels, registry=REGISTRY)


def _gauge(name: str, help_text: str, *labels: str) -> Gauge:
    return Gauge(name, help_text, labels, registry=REGISTRY)


def _histogram(name: str, help_text: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(name, help_text, labels, buckets=buckets, registry=REGISTRY)


class OptionalGauge(Collector):
    """A gauge without series while its values are unknown: only the leader has them."""

    def __init__(self, name: str, help_text: str, *labels: str) -> None:
        self._name = name
        self._help = help_text
        self._labelnames = labels
        self._values: Mapping[tuple[str, ...], float] = {}
        REGISTRY.register(self)

    def set_series(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Replace all series, by the values of their labels (() without labels); {} = unknown."""
        self._values = dict(values)  # replaced as a whole: another thread reads it

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(self._name, self._help, labels=self._labelnames)]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._name, self._help, labels=self._labelnames)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return [family]


# ---- Talos

TALOS_REQUEST_DURATION: Final = _histogram(
    "talosccm_api_request_duration_seconds",
    "Duration of Talos API calls.",
    "request",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
TALOS_REQUEST_ERRORS: Final = _counter(
    "talosccm_api_request_errors_total", "Talos API calls that failed.", "request"
)
TALOS_CERTIFICATE_EXPIRY: Final = _gauge(
    "talosccm_talos_client_certificate_expiry_timestamp_seconds",
    "Expiry of metadata's Talos client certificate, in Unix time.",
)
TALOS_MACHINE_WATCHES: Final = _gauge("talosccm_talos_machine_watches", "Machines with a live watch.")

# ---- Nodes

TAINT_REMOVAL_DELAY: Final = _histogram(
    "node_controller_cloud_provider_taint_removal_delay_seconds",
    "Time from the creation of a Node to the removal of its uninitialized taint.",
    buckets=_SINCE_CREATION,
)
INITIAL_SYNC_DELAY: Final = _histogram(
    "node_controller_initial_node_sync_delay_seconds",
    "Time from the creation of a Node to its initialization.",
    buckets=_SINCE_CREATION,
)
NODES: Final = OptionalGauge(
    "talosccm_nodes",
    "Nodes, by state: uninitialized while they have the uninitialized taint, usable without it.",
    "state",
)
OLDEST_UNINITIALIZED: Final = OptionalGauge(
    "talosccm_oldest_uninitialized_seconds",
    "Age of the oldest Node with the uninitialized taint; 0 = none.",
)
BLOCKED_NODES: Final = _gauge(
    "talosccm_blocked_nodes",
    "Nodes that the labeler cannot initialize now; a condition on each gives the reason.",
)

# ---- Rules

TRANSFORMER_DURATION: Final = _histogram(
    "talosccm_transformer_duration_seconds",
    "Time to compute the desired state of a Node, rules included.",
    "type",
    buckets=(0.001, 0.01, 0.05, 0.1),
)
TRANSFORMER_ERRORS: Final = _counter(
    "talosccm_transformer_errors_total",
    "Keys that a rule could not set, at each evaluation: the template failed or gave an invalid value.",
    "type",
)
RULES_RELOAD_SUCCESS: Final = _gauge(
    "talosccm_rules_reload_success",
    "1 while the service uses the current --cloud-config file, 0 while it uses an older, valid one.",
    "service",
)
RULES_LAST_RELOAD: Final = _gauge(
    "talosccm_rules_last_reload_timestamp_seconds",
    "Time at which the service read the --cloud-config file that it uses, in Unix time.",
    "service",
)
RULES_RELOAD_ERRORS: Final = _counter(
    "talosccm_rules_reload_errors_total",
    "Invalid versions of the --cloud-config file that the service rejected since it started.",
    "service",
)
RULES_PENDING: Final = _gauge(
    "talosccm_rules_pending_nodes",
    "Nodes that the labeler has not evaluated with the newest rules yet.",
    "service",
)
RULES_REPLAY_DURATION: Final = _histogram(
    "talosccm_rules_replay_duration_seconds",
    "Time to evaluate all Nodes again after a change of rules.",
    "service",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)

# ---- Serving certificates of kubelets


class StatusCounter(Collector):
    """Counts by status under exactly this name: prometheus_client would append `_total`."""

    _labelnames = ("status",)

    def __init__(self, name: str, help_text: str, *statuses: str) -> None:
        self._name = name
        self._help = help_text
        self._counts = dict.fromkeys(statuses, 0)
        REGISTRY.register(self)

    def inc(self, status: str) -> None:
        """Increment the count of that status."""
        self._counts[status] += 1

    def value(self, status: str) -> int:
        """Return the count of that status."""
        return self._counts[status]

    def describe(self) -> Iterable[Metric]:
        return [UnknownMetricFamily(self._name, self._help)]

    def collect(self) -> Iterable[Metric]:
        family = UnknownMetricFamily(self._name, self._help, labels=self._labelnames)
        for status, count in self._counts.items():
            family.add_metric((status,), count)
        return [family]


CSR_APPROVALS: Final = StatusCounter(
    "talosccm_csr_approval_count",
    "Decided requests for kubelet serving certificates, counted after the write.",
    "approve",
    "deny",
)
CSR_APPROVED_WITHOUT_TALOS: Final = _counter(
    "talosccm_csr_approved_without_talos_total",
    "Approvals that rest on the Node object alone, without a query to the machine.",
)
CSR_WAITING: Final = _gauge(
    "talosccm_csr_waiting", "Requests that wait and may still become valid, by reason.", "reason"
)
CSR_SUPERSEDED: Final = _gauge(
    "talosccm_csr_superseded", "Pending requests without an answer because the same node has a newer one."
)
CSR_OLDEST_PENDING_AGE: Final = _gauge(
    "talosccm_csr_oldest_pending_age_seconds",
    "Age of the oldest request that csr has yet to decide, superseded ones and those of Nodes of other "
    "controllers excluded; 0 = none.",
)
CSR_APPROVED_NOT_ISSUED: Final = _gauge(
    "talosccm_csr_approved_not_issued", "Approved requests that the cluster's signer has not answered."
)

# ---- Pod CIDRs: the reference's names, spelling included; clusterCIDR is a pool's network


IPAM_ALLOCATIONS: Final = _counter(
    "node_ipam_controller_cidrset_cidrs_allocations_total", "Claimed blocks.", "clusterCIDR"
)
IPAM_RELEASES: Final = _counter(
    "node_ipam_controller_cidrset_cidrs_releases_total", "Released blocks.", "clusterCIDR"
)
IPAM_MAX: Final = _gauge(
    "node_ipam_controller_cirdset_max_cidrs", "Total number of blocks of the network.", "clusterCIDR"
)
IPAM_USAGE: Final = _gauge(
    "node_ipam_controller_cidrset_usage_cidrs",
    "Used part of the network's blocks, 0 to 1, quarantined ones included.",
    "clusterCIDR",
)
IPAM_TRIES: Final = _histogram(
    "node_ipam_controller_cidrset_allocation_tries_per_request",
    "Blocks tried until a free one was found.",
    "clusterCIDR",
    buckets=(1.0, 5.0, 25.0, 125.0, 625.0),
)
IPAM_NODES_SERVED: Final = _counter("talosccm_ipam_nodes_served_total", "Nodes that got pod CIDRs from ipam.")
IPAM_NODES_WAITING: Final = _gauge(
    "talosccm_ipam_waiting_nodes",
    "Nodes without pod CIDRs: waiting for missing facts, or unserved until an operator acts.",
    "outcome",
)
IPAM_EXHAUSTED: Final = _gauge(
    "talosccm_ipam_exhausted_nodes", "Nodes for which the pools have no block left."
)
IPAM_QUARANTINED: Final = _gauge(
    "talosccm_ipam_quarantined_cidrs",
    "Blocks of deleted Nodes in quarantine, before ipam allocates them again.",
)
IPAM_CONFLICTS: Final = _gauge(
    "talosccm_ipam_conflicts",
    "podCIDRs of Nodes that are malformed, too wide, or overlap those of another Node.",
)
IPAM_FOREIGN: Final = _counter(
    "talosccm_ipam_foreign_nodes_total", "Nodes that got pod CIDRs from another allocator while ipam ran."
)

# ---- Nodes of machines that are gone

LIFECYCLE_LEADER: Final = _gauge(
    "talosccm_lifecycle_leader", "1 while this process holds lifecycle's Lease and may delete Nodes, else 0."
)
LIFECYCLE_DELETIONS: Final = _counter(
    "talosccm_lifecycle_deletions_total",
    "Nodes whose machine is proven gone, by outcome: deleted, would-delete (dry run), failed.",
    "evidence",
    "outcome",
)
LIFECYCLE_CAPPED: Final = _counter(
    "talosccm_lifecycle_capped_total",
    "Times that the deletion limit or its record kept a Node whose machine is proven gone.",
)
LIFECYCLE_PROVING: Final = _gauge(
    "talosccm_lifecycle_proving_nodes", "Nodes at whose addresses other machines answered at the last poll."
)
LIFECYCLE_SHUTDOWN_TAINTS: Final = _counter(
    "talosccm_lifecycle_shutdown_taints_total", "Changes of shutdown taints: set, removed.", "change"
)

# ---- Handling of messages

HANDLED: Final = _counter(
    "talosccm_events_handled_total",
    "Messages handled, by outcome: handled, waiting, retried, put_aside.",
    "service",
    "event",
    "outcome",
)
HANDLING_DURATION: Final = _histogram(
    "talosccm_event_handling_duration_seconds",
    "Duration of a handler, without the wait for another version of the same object.",
    "service",
    "event",
    buckets=_HANDLING,
)
HOP_LATENCY: Final = _histogram(
    "talosccm_hop_latency_seconds",
    "Age of a message by the bus's clock at the start of its first handling.",
    "service",
    "event",
    buckets=_END_TO_END,
)
END_TO_END_LATENCY: Final = _histogram(
    "talosccm_journey_seconds",
    "End-to-end latency: time from the watcher's observation to the end of a handling that had an effect.",
    "service",
    "event",
    buckets=_END_TO_END,
)
HANDLING_IN_FLIGHT: Final = _gauge("talosccm_events_in_flight", "Messages in handlers now.", "service")
REDELIVERED: Final = _counter(
    "talosccm_redelivered_total", "Messages that were delivered more than once.", "service"
)
DEAD_LETTERS: Final = _counter(
    "talosccm_dead_letters_total", "Messages published as dead letters.", "service"
)

# ---- Queues: stream statistics, which only the leading watcher has

QUEUE_PENDING: Final = OptionalGauge(
    "talosccm_queue_pending", "Messages that the durable has not delivered yet.", "durable"
)
QUEUE_UNACKNOWLEDGED: Final = OptionalGauge(
    "talosccm_queue_unacknowledged",
    "Delivered messages without acknowledgement: in a handler, or scheduled for a retry.",
    "durable",
)
QUEUE_REDELIVERED: Final = OptionalGauge(
    "talosccm_queue_redelivered", "Unacknowledged messages that were delivered more than once.", "durable"
)
QUEUE_STALLED: Final = OptionalGauge(
    "talosccm_queue_stalled_seconds",
    "Time without a receipt, retry or acknowledgement while there was work; 0 if moving or empty.",
    "durable",
)
STREAM_MESSAGES: Final = OptionalGauge("talosccm_stream_messages", "Messages in the stream.")
STREAM_BYTES: Final = OptionalGauge("talosccm_stream_bytes", "Bytes in the stream.")
STREAM_MAX_BYTES: Final = OptionalGauge(
    "talosccm_stream_max_bytes",
    "Maximum size of the stream in bytes, raised by the watcher as it fills; below 0 = no limit.",
)
DEAD_LETTERS_STORED: Final = OptionalGauge(
    "talosccm_dead_letters_in_stream", "Dead letters in the stream now; each stays until it expires."
)

# ---- NATS

NATS_CONNECTED: Final = _gauge(
    "talosccm_nats_connected", "1 while the service's connection to NATS is usable, else 0.", "service"
)
NATS_PERMISSION_VIOLATIONS: Final = _counter(
    "talosccm_nats_permission_violations_total", "Operations of this identity that the NATS server rejected."
)
NATS_CERTIFICATE_EXPIRES: Final = _gauge(
    "talosccm_nats_certificate_expires_timestamp_seconds",
    "Expiry of the NATS server's certificate (server) and of its authority's (authority), in Unix time.",
    "certificate",
)
STREAM_REPROVISIONED: Final = _counter(
    "talosccm_stream_reprovision_total", "Times that the watcher had to create the stream or a durable again."
)
PUBLISHED: Final = _counter(
    "talosccm_published_total",
    "Events to publish, by outcome: published, superseded, stream_full, failed, skipped, unreadable.",
    "event",
    "outcome",
)

# ---- Kubernetes

KUBE_REQUESTS: Final = _counter(
    "talosccm_kubernetes_requests_total",
    "Requests to the Kubernetes API; status is the HTTP status, or none without an answer.",
    "service",
    "verb",
    "resource",
    "status",
)
KUBE_REQUEST_DURATION: Final = _histogram(
    "talosccm_kubernetes_request_duration_seconds",
    "Duration of requests to the Kubernetes API, watches excluded.",
    "verb",
    "resource",
    buckets=_HANDLING,
)
NODE_WRITES: Final = _counter(
    "talosccm_node_writes_total",
    "Writes that the Kubernetes API accepted: Nodes, their status and Events, approvals, ConfigMaps.",
    "service",
    "resource",
)
WATCH_LAST_CONTACT: Final = _gauge(
    "talosccm_watch_last_heard_timestamp_seconds",
    "Time of the last list, watch event or opened watch of the resource, in Unix time; 0 = never.",
    "resource",
)
WATCH_RESTARTS: Final = _counter(
    "talosccm_watch_restarts_total", "Watches opened again, by reason.", "resource", "reason"
)
LEADER: Final = _gauge("talosccm_leader", "1 while this process holds the Lease, else 0.")
LEADER_SILENCE: Final = _gauge(
    "talosccm_leader_silence_seconds",
    "Seconds that this service has followed the stream without a leader heartbeat; NaN if not following.",
    "service",
)
RESYNC_LAST: Final = _gauge(
    "talosccm_resync_last_timestamp_seconds",
    "Time of the last resync, which publishes every object again, in Unix time.",
)

# ---- Clouds

CLOUD_REQUESTS: Final = _counter(
    "talosccm_cloud_requests_total",
    "Requests to the cloud of an account, by outcome: an error or silence is no answer.",
    "account",
    "outcome",
)
CLOUD_INSTANCES: Final = _gauge(
    "talosccm_cloud_instances",
    "Nodes by what the cloud says of their instance: exists, shut-down, gone, unknown, not-asked.",
    "account",
    "state",
)
CLOUD_RATE_LIMIT: Final = _gauge(
    "talosccm_cloud_rate_limit_requests",
    "Requests that the cloud allows the project of an account, with those of all its clients.",
    "account",
)
CLOUD_REQUESTS_LEFT: Final = _gauge(
    "talosccm_cloud_rate_limit_remaining_requests",
    "Requests that remain of the rate limit, by the last answer of the cloud.",
    "account",
)
CLOUD_REQUEST_DURATION: Final = _histogram(
    "talosccm_cloud_request_duration_seconds",
    "Duration of requests to the cloud of an account.",
    "account",
    buckets=_HANDLING,
)

# ---- Load balancers

BALANCERS: Final = _gauge(
    "talosccm_load_balancers",
    "Services with load balancers in the account, by state: settled, waiting, blocked, dry-run.",
    "account",
    "state",
)
BALANCER_WRITES: Final = _counter(
    "talosccm_load_balancer_writes_total",
    "Writes of load balancers to the cloud, by outcome.",
    "account",
    "kind",
    "outcome",
)
BALANCER_ORPHANS: Final = _gauge(
    "talosccm_load_balancer_orphans",
    "Load balancers of this cluster in the account without a Service, or of one that ended. They cost money.",
    "account",
)
BALANCER_LEADER: Final = _gauge(
    "talosccm_load_balancer_leader", "1 while this process holds the Lease of the account, else 0.", "account"
)
NETWORK_ROUTES: Final = _gauge(
    "talosccm_network_routes",
    "Routes of the account's network: present = of any owner, limit = how many it may have, if known.",
    "account",
    "state",
)
UNROUTED_NODES: Final = _gauge(
    "talosccm_unrouted_nodes", "Nodes on instances of the account that lack a route to their pods.", "account"
)
ROUTES_COMPARED: Final = _gauge(
    "talosccm_routes_compared_timestamp_seconds",
    "When routes and Nodes were last compared without a problem; at first, when this process began to lead. "
    "0 = it does not lead.",
    "account",
)
ROUTE_WRITES: Final = _counter(
    "talosccm_route_writes_total", "Writes of routes to the cloud, by outcome.", "account", "kind", "outcome"
)
# The names of k8s.io/cloud-provider, for its dashboards and alerts.
ROUTE_SYNCS: Final = _counter(
    "route_controller_route_sync_total", "Times that the routes of a network were compared with the Nodes."
)
LOAD_BALANCER_SYNCS: Final = _counter(
    "service_controller_loadbalancer_sync_total", "Times that a Service's load balancer was reconciled."
)
NODE_SYNC_ERRORS: Final = _counter(
    "service_controller_nodesync_error_total", "Changes of load balancers that the cloud did not confirm."
)
NODE_SYNC_LATENCY: Final = _histogram(
    "service_controller_nodesync_latency_seconds",
    "Seconds from a change of Nodes until all load balancers of the account follow it.",
    buckets=_END_TO_END,
)
UPDATE_HOSTS_LATENCY: Final = _histogram(
    "service_controller_update_loadbalancer_host_latency_seconds",
    "Duration of one change of a load balancer.",
    buckets=_END_TO_END,
)

# ---- Process

LOOP_LAG: Final = _histogram(
    "talosccm_event_loop_lag_seconds",
    "Lateness of the event loop, measured twice a second.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
)


def sum_counter(counter: Counter, matches: Callable[[Mapping[str, str]], bool]) -> int:
    """Return the sum of the series whose labels match, since the process began."""
    samples = (sample for family in counter.collect() for sample in family.samples)
    return int(sum(sample.value for sample in samples if matches(sample.labels)))


def exposition(accept: str) -> tuple[bytes, str]:
    """Return all metrics in the format for the Accept header, and its content type.

    Exemplars appear only in OpenMetrics. It takes milliseconds: call it in a thread.
    """
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type
