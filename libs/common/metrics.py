"""Every metric there is, with the reference's names where it has one. The only importer of prometheus_client.

Labels are words of ours (services, events, requests, verbs), never names of nodes: a fleet must not become
a fleet of time series.
"""

from collections.abc import Iterable, Mapping
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

disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` series beside each counter and histogram: twice the size, no use

REGISTRY: Final = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

# Since the Node's creation, upstream's buckets: 1, 4, 16 ... 1024 s (k8s.io/cloud-provider, exponential).
_SINCE_CREATION: Final = tuple(float(4**i) for i in range(6))
_HANDLING: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_JOURNEY: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)


def _counter(name: str, help_text: str, *labels: str) -> Counter:
    return Counter(name, help_text, labels, registry=REGISTRY)


def _gauge(name: str, help_text: str, *labels: str) -> Gauge:
    return Gauge(name, help_text, labels, registry=REGISTRY)


def _histogram(name: str, help_text: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(name, help_text, labels, buckets=buckets, registry=REGISTRY)


class KnownGauge(Collector):
    """A gauge without series while nobody knows its values: only who leads does, and `max` must be right."""

    def __init__(self, name: str, help_text: str, *labels: str) -> None:
        self._name = name
        self._help = help_text
        self._labelnames = labels
        self._values: Mapping[tuple[str, ...], float] = {}
        REGISTRY.register(self)

    def know(self, values: Mapping[tuple[str, ...], float]) -> None:
        """These are all series, by the values of their labels, () where it has none; {} = none is known."""
        self._values = dict(values)  # replaced whole: it is read in another thread

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
    "When our Talos client certificate expires, in Unix time.",
)
TALOS_MACHINE_WATCHES: Final = _gauge("talosccm_talos_machine_watches", "Machines under a live watch.")

# ---- Nodes

TAINT_REMOVAL_DELAY: Final = _histogram(
    "node_controller_cloud_provider_taint_removal_delay_seconds",
    "Time from the creation of a Node until its uninitialized taint was removed.",
    buckets=_SINCE_CREATION,
)
INITIAL_SYNC_DELAY: Final = _histogram(
    "node_controller_initial_node_sync_delay_seconds",
    "Time from the creation of a Node until it was initialised.",
    buckets=_SINCE_CREATION,
)
NODES: Final = KnownGauge(
    "talosccm_nodes", "Nodes, by whether they still bear the taint that keeps all work off them.", "state"
)
OLDEST_UNINITIALIZED: Final = KnownGauge(
    "talosccm_oldest_uninitialized_seconds",
    "Age of the oldest Node that still bears that taint; 0 = none does.",
)
BLOCKED_NODES: Final = _gauge(
    "talosccm_blocked_nodes", "Nodes that cannot be initialized for now and say why in a condition."
)

# ---- Rules

TRANSFORMER_DURATION: Final = _histogram(
    "talosccm_transformer_duration_seconds",
    "Time to work out what a Node should become, rules included.",
    "type",
    buckets=(0.001, 0.01, 0.05, 0.1),
)
TRANSFORMER_ERRORS: Final = _counter(
    "talosccm_transformer_errors_total",
    "Keys that a rule could not set on a Node, at each look: a template failed, or gave what cannot be set.",
    "type",
)
RULES_RELOAD_SUCCESS: Final = _gauge(
    "talosccm_rules_reload_success",
    "1 while the service obeys the --cloud-config file as it is, 0 while the file has mistakes and an older "
    "one is obeyed.",
    "service",
)
RULES_LAST_RELOAD: Final = _gauge(
    "talosccm_rules_last_reload_timestamp_seconds",
    "When the --cloud-config file that is obeyed was read, in Unix time.",
    "service",
)
RULES_RELOAD_ERRORS: Final = _counter(
    "talosccm_rules_reload_errors_total",
    "Times that the --cloud-config file was found to have mistakes since the start.",
    "service",
)
RULES_PENDING: Final = _gauge(
    "talosccm_rules_pending_nodes", "Nodes that have not been looked at by the newest rules yet.", "service"
)
RULES_REPLAY_DURATION: Final = _histogram(
    "talosccm_rules_replay_duration_seconds",
    "Time to look at all Nodes again when the rules have changed.",
    "service",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)

# ---- Certificates that kubelets serve with


class StatusCounter(Collector):
    """Counts by status under exactly the given name: prometheus_client appends `_total` to a counter's."""

    def __init__(self, name: str, help_text: str, *statuses: str) -> None:
        self._name = name
        self._help = help_text
        self._counts = dict.fromkeys(statuses, 0)
        REGISTRY.register(self)

    def inc(self, status: str) -> None:
        """One more of that status."""
        self._counts[status] += 1

    def value(self, status: str) -> int:
        """How many so far."""
        return self._counts[status]

    def describe(self) -> Iterable[Metric]:
        return [UnknownMetricFamily(self._name, self._help)]

    def collect(self) -> Iterable[Metric]:
        family = UnknownMetricFamily(self._name, self._help, labels=("status",))
        for status, count in self._counts.items():
            family.add_metric((status,), count)
        return [family]


CSR_APPROVALS: Final = StatusCounter(
    "talosccm_csr_approval_count",
    "Requests for kubelet serving certificates that were decided, counted when it was written.",
    "approve",
    "deny",
)
CSR_APPROVED_WITHOUT_TALOS: Final = _counter(
    "talosccm_csr_approved_without_talos_total",
    "Approvals that only the Node object bore out: no machine was asked.",
)
CSR_WAITING: Final = _gauge(
    "talosccm_csr_waiting", "Requests that wait for what can still become right, by reason.", "reason"
)
CSR_SUPERSEDED: Final = _gauge(
    "talosccm_csr_superseded", "Pending requests that get no answer, for the same node has a newer one."
)
CSR_OLDEST_PENDING_AGE: Final = _gauge(
    "talosccm_csr_oldest_pending_age_seconds",
    "Age of the oldest request that is to be decided, superseded ones not included; 0 = there is none.",
)
CSR_APPROVED_NOT_ISSUED: Final = _gauge(
    "talosccm_csr_approved_not_issued", "Approved requests that the cluster's signer has not answered."
)

# ---- Pod CIDRs: the reference's names, spelling included; clusterCIDR is a pool's network


IPAM_ALLOCATIONS: Final = _counter(
    "node_ipam_controller_cidrset_cidrs_allocations_total", "Blocks that were claimed.", "clusterCIDR"
)
IPAM_RELEASES: Final = _counter(
    "node_ipam_controller_cidrset_cidrs_releases_total", "Blocks that are free again.", "clusterCIDR"
)
IPAM_MAX: Final = _gauge(
    "node_ipam_controller_cirdset_max_cidrs", "Blocks that the network has in all.", "clusterCIDR"
)
IPAM_USAGE: Final = _gauge(
    "node_ipam_controller_cidrset_usage_cidrs",
    "Part of the network's blocks that is taken, 0 to 1, with those that rest.",
    "clusterCIDR",
)
IPAM_TRIES: Final = _histogram(
    "node_ipam_controller_cidrset_allocation_tries_per_request",
    "Blocks that were looked at until a free one was found.",
    "clusterCIDR",
    buckets=(1.0, 5.0, 25.0, 125.0, 625.0),
)
IPAM_NODES_SERVED: Final = _counter("talosccm_ipam_nodes_served_total", "Nodes that were given pod CIDRs.")
IPAM_NODES_WAITING: Final = _gauge(
    "talosccm_ipam_waiting_nodes",
    "Nodes without pod CIDRs: waiting for what is not known yet, or unserved until somebody acts.",
    "outcome",
)
IPAM_EXHAUSTED: Final = _gauge(
    "talosccm_ipam_exhausted_nodes", "Nodes for which the pools have no block left."
)
IPAM_QUARANTINED: Final = _gauge(
    "talosccm_ipam_quarantined_cidrs",
    "Claimed blocks of Nodes that are gone: they rest before they are given again.",
)
IPAM_CONFLICTS: Final = _gauge(
    "talosccm_ipam_conflicts", "podCIDRs of Nodes that are malformed, too wide, or overlap another's."
)
IPAM_FOREIGN: Final = _counter(
    "talosccm_ipam_foreign_nodes_total", "Nodes that got pod CIDRs from somebody else while we allocated."
)

# ---- Nodes of machines that are gone

LIFECYCLE_LEADER: Final = _gauge(
    "talosccm_lifecycle_leader", "1 while this process may delete Nodes (its own Lease), else 0."
)
LIFECYCLE_DELETIONS: Final = _counter(
    "talosccm_lifecycle_deletions_total",
    "Nodes whose machine was proven to be gone: deleted, would-delete (dry run), failed.",
    "evidence",
    "outcome",
)
LIFECYCLE_CAPPED: Final = _counter(
    "talosccm_lifecycle_capped_total",
    "Times that a Node was kept, though its machine is proven to be gone: the cap, or its record.",
)
LIFECYCLE_PROVING: Final = _gauge(
    "talosccm_lifecycle_proving_nodes", "Nodes in whose place other machines answer, as of the last look."
)
LIFECYCLE_SHUTDOWN_TAINTS: Final = _counter(
    "talosccm_lifecycle_shutdown_taints_total", "Shutdown taints written: set, removed.", "change"
)

# ---- Handling of messages

HANDLED: Final = _counter(
    "talosccm_events_handled_total",
    "Messages handled, by outcome: handled, retried, put_aside.",
    "service",
    "event",
    "outcome",
)
HANDLING_DURATION: Final = _histogram(
    "talosccm_event_handling_duration_seconds",
    "Time that a handler took, waiting for another version of the same object not included.",
    "service",
    "event",
    buckets=_HANDLING,
)
HOP_LATENCY: Final = _histogram(
    "talosccm_hop_latency_seconds",
    "Age of a message, by the bus's clock, when its first handling begins.",
    "service",
    "event",
    buckets=_JOURNEY,
)
JOURNEY: Final = _histogram(
    "talosccm_journey_seconds",
    "Time since the watcher said the state that a message goes back to, when handling it has done something.",
    "service",
    "event",
    buckets=_JOURNEY,
)
HANDLING_IN_FLIGHT: Final = _gauge("talosccm_events_in_flight", "Messages being handled now.", "service")
REDELIVERED: Final = _counter(
    "talosccm_redelivered_total", "Messages that were delivered more than once.", "service"
)
DEAD_LETTERS: Final = _counter("talosccm_dead_letters_total", "Messages put aside with a reason.", "service")

# ---- Queues: what the watcher that leads sees of the stream, and nobody else

QUEUE_PENDING: Final = KnownGauge("talosccm_queue_pending", "Messages that nobody was given yet.", "durable")
QUEUE_UNACKNOWLEDGED: Final = KnownGauge(
    "talosccm_queue_unacknowledged",
    "Messages that were given and are not settled: being handled, or parked for another try.",
    "durable",
)
QUEUE_REDELIVERED: Final = KnownGauge(
    "talosccm_queue_redelivered", "Of the unacknowledged ones, those given more than once.", "durable"
)
QUEUE_STALLED: Final = KnownGauge(
    "talosccm_queue_stalled_seconds",
    "How long there has been work that nobody took, tried again or settled; 0 while it moves or is empty.",
    "durable",
)
STREAM_MESSAGES: Final = KnownGauge("talosccm_stream_messages", "Messages that the stream holds.")
STREAM_BYTES: Final = KnownGauge("talosccm_stream_bytes", "Bytes that the stream holds.")
STREAM_MAX_BYTES: Final = KnownGauge(
    "talosccm_stream_max_bytes", "Bytes that the stream may hold; it grows with what it holds."
)
DEAD_LETTERS_LYING: Final = KnownGauge(
    "talosccm_dead_letters_lying", "Dead letters that lie in the stream now; each goes after an hour."
)

# ---- NATS

NATS_CONNECTED: Final = _gauge(
    "talosccm_nats_connected", "1 while the service's connection to NATS is usable, else 0.", "service"
)
NATS_PERMISSION_VIOLATIONS: Final = _counter(
    "talosccm_nats_permission_violations_total", "Operations that the NATS server refused this identity."
)
NATS_CERTIFICATE_EXPIRES: Final = _gauge(
    "talosccm_nats_certificate_expires_timestamp_seconds",
    "When the NATS server's certificate (server), or that of who signs it (authority), ends, in Unix time.",
    "certificate",
)
STREAM_REPROVISIONED: Final = _counter(
    "talosccm_stream_reprovision_total", "Times that the stream or a durable had to be made anew."
)
PUBLISHED: Final = _counter(
    "talosccm_published_total",
    "Events for the bus: published, superseded, stream_full, failed, skipped, unreadable.",
    "event",
    "outcome",
)

# ---- Kubernetes

KUBE_REQUESTS: Final = _counter(
    "talosccm_kubernetes_requests_total",
    "Requests to the Kubernetes API; status is the HTTP status, or none where no answer came.",
    "verb",
    "resource",
    "status",
)
KUBE_REQUEST_DURATION: Final = _histogram(
    "talosccm_kubernetes_request_duration_seconds",
    "Duration of requests to the Kubernetes API, watches not included.",
    "verb",
    "resource",
    buckets=_HANDLING,
)
NODE_WRITES: Final = _counter(
    "talosccm_node_writes_total",
    "Writes that the Kubernetes API took: Nodes, their status and Events, approvals, ConfigMaps.",
    "service",
    "resource",
)
WATCH_LAST_HEARD: Final = _gauge(
    "talosccm_watch_last_heard_timestamp_seconds",
    "When the API server last said anything about it, be it that a watch is open, in Unix time; 0 = never.",
    "resource",
)
WATCH_RESTARTS: Final = _counter(
    "talosccm_watch_restarts_total", "Watches opened again, by reason.", "resource", "reason"
)
LEADER: Final = _gauge("talosccm_leader", "1 while this process holds the Lease, else 0.")
LEADER_SILENCE: Final = _gauge(
    "talosccm_leader_silence_seconds",
    "Seconds for which this service has followed the stream without a message that a watcher leads; NaN "
    "while it does not follow.",
    "service",
)
RESYNC_LAST: Final = _gauge(
    "talosccm_resync_last_timestamp_seconds", "When everything was last published anew, in Unix time."
)

# ---- Process

LOOP_LAG: Final = _histogram(
    "talosccm_event_loop_lag_seconds",
    "How late the event loop was, twice a second.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
)


def exposition(accept: str) -> tuple[bytes, str]:
    """All metrics in the format that an Accept header asks for, and its content type.

    Exemplars appear in OpenMetrics only. Takes milliseconds: call it in a thread.
    """
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type
