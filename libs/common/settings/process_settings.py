"""What every process can be told, whatever it runs."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from libs.common.contract.services import SERVICES, WATCHER
from libs.common.settings.flags import (
    BIND_ADDRESS,
    BUS,
    CLOUD_CONFIG,
    CONTROLLERS,
    HEALTH_AND_METRICS,
    KUBERNETES,
    LOGS_AND_TRACES,
    Flag,
)
from libs.common.settings.open_paths import OPEN_PATHS, validate_open_paths
from libs.common.settings.reference_flags import select_controllers


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the outside is, what is served, and how much is told."""

    bus: Annotated[
        Literal["nats", "memory"] | None,
        Flag(
            "bus",
            "What carries the messages: a NATS server, or the memory of this process, which only "
            "`python -m services` can do. Default there: memory, unless a --nats-... flag says where NATS "
            "is. Default of a service alone: nats.",
            BUS,
        ),
    ] = None
    nats_url: Annotated[
        tuple[str, ...],
        Flag(
            "nats-url",
            "NATS servers (nats://host:4222 or tls://..., comma separated). Default: nats://127.0.0.1:4222.",
            BUS,
            env="NATS_URL",
        ),
    ] = ()
    nats_nkey_file: Annotated[
        Path | None,
        Flag(
            "nats-nkey-file",
            "File with the NKey seed that this process authenticates with; read again at each connection.",
            BUS,
            env="NATS_NKEY_FILE",
        ),
    ] = None
    nats_ca_file: Annotated[
        Path | None,
        Flag(
            "nats-ca-file",
            "Authorities that sign the NATS servers' certificates (PEM). With it, as with tls://, nothing is "
            "said to a server in the clear.",
            BUS,
            env="NATS_CA_FILE",
        ),
    ] = None

    nats_stream_replicas: Annotated[
        int,
        Flag(
            "nats-stream-replicas",
            "On how many servers of a NATS cluster the stream lies; the watcher sees to it. 0 = as it is.",
            BUS,
            at_least=0,
            at_most=5,
        ),
    ] = 0

    kubeconfig: Annotated[
        Path | None,
        Flag(
            "kubeconfig",
            "Kubeconfig file. Without it: the files in KUBECONFIG, else the service account of this pod.",
            KUBERNETES,
        ),
    ] = None
    master: Annotated[
        str, Flag("master", "Address of the API server, instead of the one in the kubeconfig.", KUBERNETES)
    ] = ""

    cloud_config: Annotated[Path | None, CLOUD_CONFIG] = None
    controllers: Annotated[tuple[str, ...], CONTROLLERS] = ("*",)

    secure_port: Annotated[
        int | None,
        Flag(
            "secure-port",
            f"Port of /healthz, /livez, /readyz and /metrics. Default: {WATCHER.port}, "
            f"{', '.join(f'{spec.service} alone {spec.port}' for spec in SERVICES if spec != WATCHER)}. "
            "0 = do not serve.",
            HEALTH_AND_METRICS,
            at_least=0,
            at_most=65535,
        ),
    ] = None
    bind_address: Annotated[str, BIND_ADDRESS] = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from outside
    open_paths: Annotated[
        tuple[str, ...],
        Flag(
            "authorization-always-allow-paths",
            "Paths that need no authorization. Every path is served to every caller: a list that leaves out "
            "/healthz, /livez, /readyz or /metrics is refused.",
            HEALTH_AND_METRICS,
        ),
    ] = OPEN_PATHS
    tls_cert_file: Annotated[
        Path | None,
        Flag(
            "tls-cert-file",
            "Certificate to serve with (PEM). Without it, one is made in memory.",
            HEALTH_AND_METRICS,
        ),
    ] = None
    tls_private_key_file: Annotated[
        Path | None, Flag("tls-private-key-file", "Its private key (PEM).", HEALTH_AND_METRICS)
    ] = None
    secure_serving: Annotated[
        bool, Flag("secure-serving", "Serve HTTPS; false = plain HTTP, for a local look.", HEALTH_AND_METRICS)
    ] = True

    verbosity: Annotated[
        int,
        Flag("v", "How much is told: up to 2 the normal, from 3 on everything.", LOGS_AND_TRACES, at_least=0),
    ] = 2
    logging_format: Annotated[
        Literal["text", "json"],
        Flag("logging-format", "How lines look.", LOGS_AND_TRACES, aliases=("log-format",)),
    ] = "text"
    otlp_endpoint: Annotated[
        str,
        Flag(
            "otlp-endpoint",
            "Export traces to this OTLP/HTTP endpoint (http://host:4318). Empty = no tracing. Sampling and "
            "headers by the usual OTEL_* variables.",
            LOGS_AND_TRACES,
            env="OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
    ] = ""

    def problems(self) -> tuple[str, ...]:
        """Mistakes between fields."""
        found = list(select_controllers(self.controllers).mistakes)
        found += [
            f'--nats-url: "{url}" is not an address such as nats://host:4222 or tls://host:4222'
            for url in self.nats_url
            if url.partition("://")[0] not in ("nats", "tls") and "://" in url
        ]
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            found.append(f'--otlp-endpoint: "{self.otlp_endpoint}" is not a URL such as http://host:4318')
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            found.append("--tls-cert-file and --tls-private-key-file go together")
        if self.secure_port != 0:
            found += validate_open_paths(self.open_paths)
        return tuple(found)

    def warnings(self) -> tuple[str, ...]:
        """What is accepted, and not what somebody may hope for."""
        unused = ["--bus=memory: NATS is not used, whatever --nats-url, NATS_URL and the like say"]
        in_vain = self.bus == "memory" and self._says_where_nats_is
        return (*select_controllers(self.controllers).warnings, *(unused if in_vain else []))

    @property
    def nats_servers(self) -> tuple[str, ...]:
        """Where to look for NATS."""
        return self.nats_url or ("nats://127.0.0.1:4222",)

    def uses_memory_bus(self, *, is_standalone: bool) -> bool:
        """Whether messages stay in this process; `alone`: it runs one service of several."""
        chosen = self.bus or ("nats" if is_standalone or self._says_where_nats_is else "memory")
        return chosen == "memory"

    @property
    def _says_where_nats_is(self) -> bool:
        return bool(self.nats_url or self.nats_nkey_file or self.nats_ca_file)
