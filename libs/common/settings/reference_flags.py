"""Flags of the reference that have no effect here; they are accepted with a warning.

They come from k8s.io/cloud-provider 0.36, k8s.io/component-base and the reference's allocator.
"""

from typing import Final

import msgspec


class IgnoredFlag(msgspec.Struct, frozen=True):
    """An accepted flag without effect."""

    name: str
    why: str
    is_boolean: bool = False
    silent_values: tuple[str, ...] = ()  # values that request the existing behavior: no warning
    always_warns: bool = False  # the requested behavior is missing, and a user may rely on it


_PACE = "requests are few and not throttled; the client respects a 429 of the API server"
_AUTH = "health and metrics contain no secrets and are open to every caller that reaches the port"
_TLS = "health and metrics use TLS 1.2 or newer and OpenSSL's default ciphers"
_WEBHOOK = "there are no webhooks here"
_OTHER_CLOUD = "there are no cloud routes, load balancers or volumes here"
_HTTP2 = "health and metrics use HTTP/1.1"
_LOGS = "logs go to stderr, one line per entry; see --logging-format"
_K8S = "it applies only to programs that are built from Kubernetes code"


def _all(names: str, why: str, *, boolean: bool = False, loud: bool = False) -> list[IgnoredFlag]:
    return [IgnoredFlag(name, why, boolean, (), loud) for name in names.split()]


_TABLE: Final = (
    IgnoredFlag("cloud-provider", "the cloud provider is always talos", silent_values=("talos", "external")),
    *_all("kube-api-qps kube-api-burst", _PACE),
    *_all("kube-api-content-type", "the client uses JSON and decodes only the fields that it needs"),
    *_all("concurrent-node-syncs concurrent-node-status-updates", "Nodes are always processed concurrently"),
    *_all("min-resync-period node-sync-period", "see --node-status-update-frequency"),
    *_all("node-monitor-period", "Nodes are watched, not polled"),
    *_all("controller-start-interval", "all controllers start at once"),
    *_all("route-reconciliation-period", _OTHER_CLOUD),
    IgnoredFlag("configure-cloud-routes", _OTHER_CLOUD, is_boolean=True, silent_values=("false",)),
    *_all("concurrent-service-syncs external-cloud-volume-plugin", _OTHER_CLOUD),
    IgnoredFlag(
        "use-service-account-credentials",
        "each service has its own service account, and none may create tokens",
        is_boolean=True,
        silent_values=("false",),
    ),
    *_all("allow-untagged-cloud", "Talos clusters need no cluster id", boolean=True),
    IgnoredFlag("leader-elect-resource-lock", "only Leases are used as locks", silent_values=("leases",)),
    *_all("enable-leader-migration", "there is no in-tree Talos provider to migrate from", boolean=True),
    *_all("leader-migration-config", "there is no in-tree Talos provider to migrate from"),
    *_all(
        "authentication-kubeconfig authentication-token-webhook-cache-ttl authorization-kubeconfig"
        " authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl"
        " client-ca-file requestheader-allowed-names requestheader-client-ca-file"
        " requestheader-extra-headers-prefix requestheader-group-headers requestheader-uid-headers"
        " requestheader-username-headers",
        _AUTH,
        loud=True,
    ),
    *_all("authentication-skip-lookup authentication-tolerate-lookup-failure", _AUTH, boolean=True),
    *_all("cert-dir", "without --tls-cert-file the certificate is generated in memory, without a directory"),
    IgnoredFlag("tls-min-version", _TLS, silent_values=("VersionTLS12",), always_warns=True),
    *_all("tls-cipher-suites tls-curve-preferences", _TLS, loud=True),
    *_all("tls-sni-cert-key", "only one certificate is served: --tls-cert-file", loud=True),
    *_all("http2-max-streams-per-connection", _HTTP2),
    *_all("disable-http2-serving", _HTTP2, boolean=True),
    *_all("permit-address-sharing permit-port-sharing", "the port is never shared", boolean=True),
    *_all("profiling contention-profiling", "there is no profiling endpoint", boolean=True),
    *_all(
        "webhooks webhook-bind-address webhook-secure-port webhook-cert-dir webhook-tls-cert-file"
        " webhook-tls-private-key-file webhook-tls-cipher-suites webhook-tls-curve-preferences"
        " webhook-tls-min-version webhook-tls-sni-cert-key",
        _WEBHOOK,
    ),
    *_all("webhook-disable-http2-serving", _WEBHOOK, boolean=True),
    *_all("feature-gates emulated-version min-compatibility-version", _K8S),
    *_all(
        "allow-metric-labels allow-metric-labels-manifest disabled-metrics show-hidden-metrics-for-version",
        _K8S,
    ),
    *_all(
        "log-flush-frequency log-text-info-buffer-size log-json-info-buffer-size log-backtrace-at log-dir"
        " log-file log-file-max-size stderrthreshold vmodule",
        _LOGS,
    ),
    *_all(
        "logtostderr alsologtostderr add-dir-header one-output skip-headers skip-log-headers"
        " log-text-split-stream log-json-split-stream",
        _LOGS,
        boolean=True,
    ),
)

IGNORED_FLAGS: Final[dict[str, IgnoredFlag]] = {flag.name: flag for flag in _TABLE}
