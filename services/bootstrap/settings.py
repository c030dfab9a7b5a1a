"""What the bootstrap can be told."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from libs.common.settings.flags import BIND_ADDRESS, HEALTH_AND_METRICS, KUBERNETES, LOGS_AND_TRACES, Flag

_OBJECTS_GROUP: Final = "What is made"
_SERVER_GROUP: Final = "The NATS server"
_RENEWAL_GROUP: Final = "Renewal"
_YEAR_SECONDS: Final = 365 * 86400.0


class BootstrapSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Names, where files go, how the server listens, and how long certificates live."""

    namespace: Annotated[
        str, Flag("namespace", "Namespace of NATS, of its Secrets and of our services.", _OBJECTS_GROUP)
    ] = "kube-system"
    prefix: Annotated[
        str,
        Flag("prefix", "What the names of NATS' objects begin with: the chart's full name.", _OBJECTS_GROUP),
    ] = "talos-cloud-controller-manager"
    instance: Annotated[
        str,
        Flag(
            "instance",
            "Label app.kubernetes.io/instance of what is made, by which it is removed. Default: the prefix.",
            _OBJECTS_GROUP,
        ),
    ] = ""
    out: Annotated[
        Path,
        Flag(
            "out",
            "Directory for nats.conf and the files that it names; nats-server must see it at this same path.",
            _OBJECTS_GROUP,
        ),
    ] = Path("/etc/nats")
    files: Annotated[
        Path | None,
        Flag(
            "files",
            "Keep keys and authority as files below this directory, a folder for each Secret, and not in "
            "Kubernetes: for compose and for a look.",
            _OBJECTS_GROUP,
        ),
    ] = None
    keep: Annotated[
        bool,
        Flag(
            "keep",
            "Go on: renew what ends, make anew what was deleted, have the server reload its configuration.",
            _RENEWAL_GROUP,
        ),
    ] = False
    reconcile_interval_seconds: Annotated[
        float, Flag("look-every", "How often --keep looks at it all.", _RENEWAL_GROUP, at_least=0.1)
    ] = 60.0
    certificate_seconds: Annotated[
        float,
        Flag(
            "certificate-lifetime",
            "How long the server's certificate lives. It is renewed when a third of that is left.",
            _RENEWAL_GROUP,
            at_least=1.0,
        ),
    ] = _YEAR_SECONDS
    server_name: Annotated[
        str, Flag("server-name", "Name of this server, unique in its cluster.", _SERVER_GROUP, env="POD_NAME")
    ] = "nats-0"
    replicas: Annotated[
        int, Flag("replicas", "Servers that form a cluster: 1, 3 or 5.", _SERVER_GROUP, at_least=1, at_most=5)
    ] = 1
    cluster_domain: Annotated[
        str, Flag("cluster-domain", "DNS domain of the Kubernetes cluster.", _SERVER_GROUP)
    ] = "cluster.local"
    tls_names: Annotated[
        tuple[str, ...],
        Flag("tls-names", "More names and addresses that the server's certificate is for.", _SERVER_GROUP),
    ] = ()
    listen_address: Annotated[
        str,
        Flag(
            "listen-address",
            "Address that the server listens on. 0.0.0.0 means all addresses of both families.",
            _SERVER_GROUP,
        ),
    ] = "0.0.0.0"  # noqa: S104 - the services come from other pods
    client_port: Annotated[
        int, Flag("client-port", "Port for clients.", _SERVER_GROUP, at_least=1, at_most=65535)
    ] = 4222
    route_port: Annotated[
        int, Flag("route-port", "Port for the other servers.", _SERVER_GROUP, at_least=1, at_most=65535)
    ] = 6222
    monitor_port: Annotated[
        int,
        Flag(
            "monitor-port",
            "Port of /healthz, for probes. 0 = do not serve.",
            _SERVER_GROUP,
            at_least=0,
            at_most=65535,
        ),
    ] = 8222
    store_dir: Annotated[Path, Flag("store-dir", "Directory for what the server stores.", _SERVER_GROUP)] = (
        Path("/data")
    )
    store_bytes: Annotated[
        int,
        Flag(
            "store-bytes",
            "How much the stream may hold; the volume needs twice that, for what is not compacted yet.",
            _SERVER_GROUP,
            at_least=64 * 2**20,
        ),
    ] = 256 * 2**20
    kubeconfig: Annotated[
        Path | None,
        Flag(
            "kubeconfig",
            "Kubeconfig file. Without it: the files in KUBECONFIG, else the service account of this pod.",
            KUBERNETES,
        ),
    ] = None
    secure_port: Annotated[
        int,
        Flag(
            "secure-port",
            "Port of /livez, /readyz and /metrics with --keep. 0 = do not serve.",
            HEALTH_AND_METRICS,
            at_least=0,
            at_most=65535,
        ),
    ] = 10464
    bind_address: Annotated[str, BIND_ADDRESS] = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from outside
    secure_serving: Annotated[
        bool, Flag("secure-serving", "Serve HTTPS; false = plain HTTP, for a local look.", HEALTH_AND_METRICS)
    ] = True
    verbosity: Annotated[
        int,
        Flag("v", "How much is told: up to 2 the normal, from 3 on everything.", LOGS_AND_TRACES, at_least=0),
    ] = 2
    logging_format: Annotated[
        Literal["text", "json"], Flag("logging-format", "How lines look.", LOGS_AND_TRACES)
    ] = "text"

    def problems(self) -> tuple[str, ...]:
        """Mistakes between fields."""
        found = []
        if self.replicas % 2 == 0:
            found.append(
                f"--replicas={self.replicas}: an even number survives no more than one less: 1, 3 or 5"
            )
        if not _is_address(self.listen_address):
            found.append(f'--listen-address: "{self.listen_address}" is not an IP address')
        return tuple(found)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
