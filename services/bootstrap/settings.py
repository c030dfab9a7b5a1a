"""Settings of the bootstrap."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from libs.common.contract.services import ACCOUNT_FORM, is_account_name
from libs.common.settings.flags import (
    BIND_ADDRESS,
    HEALTH_AND_METRICS,
    KUBERNETES,
    LOGS_AND_TRACES,
    SECURE_SERVING,
    VERBOSITY,
    Flag,
)
from services.bootstrap.resource_names import ResourceNames

_OBJECTS_GROUP: Final = "Objects and files"
_SERVER_GROUP: Final = "The NATS server"
_RENEWAL_GROUP: Final = "Renewal"
_YEAR_SECONDS: Final = 365 * 86400.0


class BootstrapSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the bootstrap."""

    namespace: Annotated[
        str, Flag("namespace", "Namespace of NATS, its Secrets and the services.", _OBJECTS_GROUP)
    ] = "kube-system"
    prefix: Annotated[
        str,
        Flag("prefix", "Prefix of the names of all objects of NATS: the chart's full name.", _OBJECTS_GROUP),
    ] = "talos-cloud-controller-manager"
    instance: Annotated[
        str,
        Flag(
            "instance",
            "Value of the label app.kubernetes.io/instance on all created objects, which selects them for "
            "removal. Default: the prefix.",
            _OBJECTS_GROUP,
        ),
    ] = ""
    cloud_accounts: Annotated[
        tuple[str, ...],
        Flag("cloud-accounts", "Cloud accounts, each of which gets a key of its own.", _OBJECTS_GROUP),
    ] = ()
    out: Annotated[
        Path,
        Flag(
            "out",
            "Directory for nats.conf and the files that it names; nats-server must use the same path.",
            _OBJECTS_GROUP,
        ),
    ] = Path("/etc/nats")
    files: Annotated[
        Path | None,
        Flag(
            "files",
            "Store keys and authority as files below this directory, one folder per Secret, instead of in "
            "Kubernetes, such as for your own NATS.",
            _OBJECTS_GROUP,
        ),
    ] = None
    keep: Annotated[
        bool,
        Flag(
            "keep",
            "Run continuously: renew certificates, create deleted objects again, reload the server.",
            _RENEWAL_GROUP,
        ),
    ] = False
    reconcile_interval_seconds: Annotated[
        float,
        Flag("check-interval", "Interval at which --keep checks everything.", _RENEWAL_GROUP, at_least=0.1),
    ] = 60.0
    certificate_seconds: Annotated[
        float,
        Flag(
            "certificate-lifetime",
            "Lifetime of the server's certificate, which is renewed when a third of it is left.",
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
        Flag("tls-names", "Additional names and addresses for the server's certificate.", _SERVER_GROUP),
    ] = ()
    listen_address: Annotated[
        str,
        Flag(
            "listen-address",
            "Address on which the server listens. 0.0.0.0 means all addresses of both families.",
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
            "Port of /healthz for probes; 0 disables it.",
            _SERVER_GROUP,
            at_least=0,
            at_most=65535,
        ),
    ] = 8222
    store_dir: Annotated[Path, Flag("store-dir", "Directory for the server's streams.", _SERVER_GROUP)] = (
        Path("/data")
    )
    store_bytes: Annotated[
        int,
        Flag(
            "store-bytes",
            "Maximum size of the stream; the volume needs twice as much, because of data not compacted yet.",
            _SERVER_GROUP,
            at_least=64 * 2**20,
        ),
    ] = 256 * 2**20
    kubeconfig: Annotated[
        Path | None,
        Flag(
            "kubeconfig",
            "Kubeconfig file. Default: the files in KUBECONFIG, else the service account of this pod.",
            KUBERNETES,
        ),
    ] = None
    secure_port: Annotated[
        int,
        Flag(
            "secure-port",
            "Port of /livez, /readyz and /metrics with --keep; 0 disables them.",
            HEALTH_AND_METRICS,
            at_least=0,
            at_most=65535,
        ),
    ] = 10464
    bind_address: Annotated[str, BIND_ADDRESS] = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from outside
    secure_serving: Annotated[bool, SECURE_SERVING] = True
    verbosity: Annotated[int, VERBOSITY] = 2
    logging_format: Annotated[
        Literal["text", "json"], Flag("logging-format", "Format of log lines.", LOGS_AND_TRACES)
    ] = "text"

    @property
    def names(self) -> ResourceNames:
        """The names of the installation's objects."""
        return ResourceNames(
            namespace=self.namespace,
            prefix=self.prefix,
            cluster_domain=self.cluster_domain,
            cloud_accounts=self.cloud_accounts,
        )

    def problems(self) -> tuple[str, ...]:
        """Return the invalid and contradictory settings."""
        found = []
        if self.replicas % 2 == 0:
            found.append(
                f"--replicas={self.replicas}: an even number tolerates no more failures: use 1, 3 or 5"
            )
        found += [
            f"--cloud-accounts: {name!r} is no name of an account: {ACCOUNT_FORM}"
            for name in self.cloud_accounts
            if not is_account_name(name)
        ]
        found += [
            f"--tls-names: {name!r} is not ASCII: write it in the form xn--..."
            for name in self.tls_names
            if not name.isascii()
        ]
        if not _is_address(self.listen_address):
            found.append(f'--listen-address: "{self.listen_address}" is not an IP address')
        return tuple(found)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
