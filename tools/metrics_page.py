"""`python -m tools.metrics_page`: writes docs/metrics.md from the code that defines metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from libs.talos import resources
from tools.registered_metrics import (
    ALL_SERVICES,
    ROOT,
    RegisteredMetric,
    list_registered_metrics,
    list_services,
)

PAGE: Final = ROOT / "docs" / "metrics.md"

OF_THE_REFERENCE: Final = frozenset(
    {
        "talosccm_api_request_duration_seconds",
        "talosccm_api_request_errors_total",
        "talosccm_transformer_duration_seconds",
        "talosccm_transformer_errors_total",
        "talosccm_csr_approval_count",
        "node_controller_cloud_provider_taint_removal_delay_seconds",
        "node_controller_initial_node_sync_delay_seconds",
        "node_ipam_controller_cidrset_cidrs_allocations_total",
        "node_ipam_controller_cidrset_cidrs_releases_total",
        "node_ipam_controller_cirdset_max_cidrs",
        "node_ipam_controller_cidrset_usage_cidrs",
        "node_ipam_controller_cidrset_allocation_tries_per_request",
    }
)

# The values of a label, by the constant of its metric where that matters. Plain words are the complete list.
_LABELS: Final[dict[tuple[str, str], str]] = {
    ("TRANSFORMER_DURATION", "type"): "`transformer`",
    ("TRANSFORMER_ERRORS", "type"): "`transformer`",
    ("CSR_WAITING", "reason"): "a [check](certificates.md#what-is-checked), `rights` or `TooManyRequests`",
    ("IPAM_NODES_WAITING", "outcome"): "`waiting`, `unserved`",
    ("LIFECYCLE_DELETIONS", "evidence"): "`replaced`, `instance-gone`, `gcp-spot`",
    ("LIFECYCLE_DELETIONS", "outcome"): "`deleted`, `would-delete`, `failed`",
    ("LIFECYCLE_SHUTDOWN_TAINTS", "change"): "`set`, `removed`",
    ("CLOUD_REQUESTS", "account"): "account of `--cloud-account`",
    (
        "CLOUD_REQUESTS",
        "outcome",
    ): "how the cloud answered, such as found, not_found, rate_limited, unreachable",
    ("CLOUD_INSTANCES", "account"): "account of `--cloud-account`",
    ("CLOUD_INSTANCES", "state"): "`exists`, `shut-down`, `gone`, `unknown`, `not-asked`",
    ("CLOUD_REQUEST_DURATION", "account"): "account of `--cloud-account`",
    ("CLOUD_RATE_LIMIT", "account"): "account of `--cloud-account`",
    ("CLOUD_REQUESTS_LEFT", "account"): "account of `--cloud-account`",
    ("BALANCERS", "account"): "account of `--cloud-account`",
    ("BALANCERS", "state"): "`settled`, `waiting`, `blocked`, `dry-run`",
    ("BALANCER_WRITES", "account"): "account of `--cloud-account`",
    ("BALANCER_WRITES", "kind"): "`create`, `change`, `delete`",
    ("BALANCER_WRITES", "outcome"): "`success`, `not_found`, `unknown`, or the kind of rejection",
    ("BALANCER_ORPHANS", "account"): "account of `--cloud-account`",
    ("BALANCER_LEADER", "account"): "account of `--cloud-account`",
    ("NETWORK_ROUTES", "account"): "account of `--cloud-account`",
    ("NETWORK_ROUTES", "state"): "`present`, `limit`",
    ("UNROUTED_NODES", "account"): "account of `--cloud-account`",
    ("ROUTES_COMPARED", "account"): "account of `--cloud-account`",
    ("ROUTE_WRITES", "account"): "account of `--cloud-account`",
    ("ROUTE_WRITES", "kind"): "`create`, `delete`",
    ("ROUTE_WRITES", "outcome"): "`success`, `not_found`, `unknown`, or the kind of rejection",
    ("HANDLED", "event"): "message type, such as `NodeEnriched`",
    ("HANDLED", "outcome"): "`handled`, `waiting` (until its next check), `retried`, `put_aside`",
    ("HANDLING_DURATION", "event"): "message type, such as `NodeEnriched`",
    ("HOP_LATENCY", "event"): "message type, such as `NodeEnriched`",
    ("END_TO_END_LATENCY", "event"): "message type, such as `NodeEnriched`",
    ("NODES", "state"): "`usable`, `uninitialized`",
    ("NODE_WRITES", "resource"): "with its subresource, such as `nodes/status`",
    ("", "durable"): "a durable, such as `labeler-nodes`, of an enabled service, or with a past consumer",
    ("NATS_CERTIFICATE_EXPIRES", "certificate"): "`server`, `authority`",
    ("PUBLISHED", "event"): "subject without the object name, such as `flow.observed.node`",
    ("PUBLISHED", "outcome"): "`published`, `superseded`, `stream_full`, `failed`, `skipped`, `unreadable`",
    ("KUBE_REQUESTS", "verb"): "Kubernetes verb, such as `patch`",
    ("KUBE_REQUESTS", "resource"): "with its subresource, such as `nodes/status`",
    ("KUBE_REQUESTS", "status"): "HTTP status; `none` = no answer",
    ("KUBE_REQUEST_DURATION", "verb"): "Kubernetes verb, such as `patch`",
    ("KUBE_REQUEST_DURATION", "resource"): "with its subresource, such as `nodes/status`",
    ("WATCH_LAST_CONTACT", "resource"): "`nodes`, `certificatesigningrequests`, `services`",
    ("WATCH_RESTARTS", "resource"): "`nodes`, `certificatesigningrequests`, `services`, `servicecidrs`",
    ("WATCH_RESTARTS", "reason"): "failure type, such as `Unreachable`",
    ("IPAM_MAX", "clusterCIDR"): "a pool's network",
    ("IPAM_USAGE", "clusterCIDR"): "a pool's network",
    ("", "clusterCIDR"): "a pool's network; `node-subnet` = all subnets of Nodes",
    ("", "service"): "the service's name",
}

_HEAD: Final = """\
<!-- Generated by `make metrics-page` from the code that registers and uses metrics. Do not edit. -->
# Metrics

Each service, and the NATS keeper, serves its metrics at `/metrics`, on the [ports](processes.md#ports) of the
processes. No label contains a Node name. The chart's DaemonSet serves them on the loopback address of its
node, unless `daemonSet.bindAddress` is another one.

- **\\*** marks metrics whose name and labels are those of the reference controller.
- The fourth column lists the processes that set a metric: all services, some of them, or `bootstrap`, the
  NATS keeper.
- Every process exposes each metric without labels, as 0 if it does not set it. So an alert on a small value,
  such as an expiry time, must exclude 0. A metric with labels may have no series until something happens.
- Metrics of "the watcher that leads" have no series in any other process, and none while their value is
  unknown. So `max` over all processes is correct. The leader samples the queues every 15 s, and
  Nodes every 5 s.
- While [traces](traces.md) are exported, some buckets have exemplars with a `trace_id`, in OpenMetrics only:
  `talosccm_hop_latency_seconds`, `talosccm_journey_seconds`, `talosccm_event_handling_duration_seconds`,
  `talosccm_api_request_duration_seconds` and the taint removal delay.
- Type `unknown` is a counter whose name does not end in `_total`.
- A histogram has the series `_bucket`, `_sum` and `_count`.
- Each process also exposes `process_*` and `python_info` of its Python process.
"""
_TABLE: Final = "| metric | type | labels | set by | meaning |\n|---|---|---|---|---|\n"


def render_metrics_page() -> str:
    """Return the content of the page."""
    found = list_registered_metrics()
    sections = dict.fromkeys(each.section for each in found)
    return _HEAD + "".join(
        f"\n## {section}\n\n{_TABLE}"
        + "".join(_render_row(each) for each in found if each.section == section)
        for section in sections
    )


def describe_label_values(metric: RegisteredMetric, label: str) -> str:
    """Describe the values of that label. Raises KeyError for an unknown label."""
    if metric.arguments:
        return _quoted(metric.arguments)
    if label == "request":
        return _quoted(list_talos_requests())
    return _LABELS.get((metric.constant, label)) or _LABELS["", label]


def list_talos_requests() -> tuple[str, ...]:
    """Return the names of Talos API calls."""
    named = (one for one in vars(resources).values() if isinstance(one, resources.ResourceRef))
    return tuple(one.metric_label for one in (*named, *resources.INVENTORY.values()))


def _render_row(metric: RegisteredMetric) -> str:
    star = r" **\***" if metric.name in OF_THE_REFERENCE else ""
    labels = "<br>".join(_render_labels(metric))
    return (
        f"| `{metric.name}`{star} | {metric.type} | {labels} | {_render_services(metric)} | "
        f"{metric.meaning} |\n"
    )


def _render_labels(metric: RegisteredMetric) -> Iterator[str]:
    for label in metric.labels:
        yield f"`{label}`: {describe_label_values(metric, label)}"


def _render_services(metric: RegisteredMetric) -> str:
    if metric.is_optional:
        return "the watcher that leads"
    services = list_services(metric.constant)
    return "all" if services == ALL_SERVICES else ", ".join(services)


def _quoted(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


if __name__ == "__main__":
    PAGE.write_text(render_metrics_page())
