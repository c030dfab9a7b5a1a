"""The settings of every process, whatever it runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from libs.common.contract.controllers import find_controller_mistakes
from libs.common.contract.services import SERVICE_TABLE, WATCHER
from libs.common.settings.flags import (
    BIND_ADDRESS,
    BUS,
    CLOUD_CONFIG,
    CONTROLLERS,
    HEALTH_AND_METRICS,
    KUBERNETES,
    LOGS_AND_TRACES,
    SECURE_SERVING,
    VERBOSITY,
    Flag,
)

OPEN_PATHS: Final = ("/healthz", "/livez", "/readyz", "/metrics")


def _find_protected_paths(allowed: Sequence[str]) -> Iterator[str]:
    """Yield that the reference would protect paths, given the flag's paths and `/prefix*` patterns."""
    patterns = [pattern.removeprefix("/") for pattern in allowed]
    protected = [path for path in OPEN_PATHS if not any(_matches(path[1:], each) for each in patterns)]
    if protected:
        yield (
            f"--authorization-always-allow-paths lacks {', '.join(protected)}, and no path can be "
            f"protected here: every caller may get {', '.join(OPEN_PATHS)}. List all of them, and "
            "restrict the callers with a NetworkPolicy"
        )


def _matches(path: str, pattern: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Connections, serving and logging."""

    bus: Annotated[
        Literal["nats", "memory"] | None,
        Flag(
            "bus",
            "Message bus: a NATS server, or the memory of this process, which only `python -m services` "
            "supports. Default there: memory, or nats if a --nats-... flag is given. "
            "Default of a single service: nats.",
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
            "File with the NKey seed of this process; read again at each connection.",
            BUS,
            env="NATS_NKEY_FILE",
        ),
    ] = None
    nats_ca_file: Annotated[
        Path | None,
        Flag(
            "nats-ca-file",
            "CA certificates of the NATS servers (PEM). With this file, as with tls://, TLS is required.",
            BUS,
            env="NATS_CA_FILE",
        ),
    ] = None

    nats_stream_replicas: Annotated[
        int,
        Flag(
            "nats-stream-replicas",
            "Number of stream replicas in a NATS cluster; the watcher applies it. 0 = unchanged.",
            BUS,
            at_least=0,
            at_most=5,
        ),
    ] = 0

    kubeconfig: Annotated[
        Path | None,
        Flag(
            "kubeconfig",
            "Kubeconfig file. Default: the files in KUBECONFIG, otherwise the service account of this pod.",
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
            f"{', '.join(f'{spec.service} alone {spec.port}' for spec in SERVICE_TABLE if spec != WATCHER)}. "
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
            "Paths that need no authorization. Every caller may get every path: a list without "
            "/healthz, /livez, /readyz or /metrics is an error.",
            HEALTH_AND_METRICS,
        ),
    ] = OPEN_PATHS
    tls_cert_file: Annotated[
        Path | None,
        Flag(
            "tls-cert-file",
            "Serving certificate (PEM). Default: one generated in memory.",
            HEALTH_AND_METRICS,
        ),
    ] = None
    tls_private_key_file: Annotated[
        Path | None, Flag("tls-private-key-file", "Private key of --tls-cert-file (PEM).", HEALTH_AND_METRICS)
    ] = None
    secure_serving: Annotated[bool, SECURE_SERVING] = True

    verbosity: Annotated[int, VERBOSITY] = 2
    logging_format: Annotated[
        Literal["text", "json"],
        Flag("logging-format", "Format of log lines.", LOGS_AND_TRACES),
    ] = "text"
    otlp_endpoint: Annotated[
        str,
        Flag(
            "otlp-endpoint",
            "Export traces to this OTLP/HTTP endpoint (http://host:4318). Empty = no tracing. The standard "
            "OTEL_* variables set sampling and headers.",
            LOGS_AND_TRACES,
            env="OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
    ] = ""

    def problems(self) -> tuple[str, ...]:
        """Return mistakes between fields."""
        found = list(find_controller_mistakes(self.controllers))
        found += [
            f'--nats-url: "{url}" is not an address such as nats://host:4222 or tls://host:4222'
            for url in self.nats_url
            if url.partition("://")[0] not in ("nats", "tls") and "://" in url
        ]
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            found.append(f'--otlp-endpoint: "{self.otlp_endpoint}" is not a URL such as http://host:4318')
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            found.append("--tls-cert-file and --tls-private-key-file must be given together")
        if self.secure_port != 0:
            found += _find_protected_paths(self.open_paths)
        return tuple(found)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about settings without effect."""
        if self.bus != "memory" or not self._configures_nats:
            return ()
        return (
            "--bus=memory: NATS is not used, and settings such as --nats-url and NATS_URL have no effect",
        )

    @property
    def nats_servers(self) -> tuple[str, ...]:
        """The URLs of the NATS servers."""
        return self.nats_url or ("nats://127.0.0.1:4222",)

    def uses_memory_bus(self, *, is_standalone: bool) -> bool:
        """Return whether messages stay in this process; `is_standalone`: it runs one service of several."""
        chosen = self.bus or ("nats" if is_standalone or self._configures_nats else "memory")
        return chosen == "memory"

    @property
    def _configures_nats(self) -> bool:
        return bool(self.nats_url or self.nats_nkey_file or self.nats_ca_file)
