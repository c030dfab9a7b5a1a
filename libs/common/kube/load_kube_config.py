"""Loads server and identity: from a kubeconfig, or from the service account of the pod."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from libs.common.kube.kube_config import CredentialSource, KubeConfig, KubeConfigError, parse_server_url
from libs.common.kube.kubeconfig import load_context

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load_kube_config(
    path: Path | None,
    environment: Mapping[str, str],
    *,
    context: str = "",
    service_account: Path = SERVICE_ACCOUNT,
) -> KubeConfig:
    """Load from `path`, else from the files in KUBECONFIG, else from the pod's service account.

    An empty `context` means the current one. Raises KubeConfigError.
    """
    if path is not None:
        return load_context([path], context, "--kubeconfig", environment)
    if listed := [Path(item) for item in environment.get("KUBECONFIG", "").split(":") if item]:
        present = [item for item in listed if item.exists()] if len(listed) > 1 else listed  # as kubectl does
        if not present:
            raise KubeConfigError(f"KUBECONFIG: none of {', '.join(map(str, listed))} exists")
        return load_context(present, context, "KUBECONFIG", environment)
    host, port = (
        environment.get("KUBERNETES_SERVICE_HOST", ""),
        environment.get("KUBERNETES_SERVICE_PORT", ""),
    )
    if not host or not port:
        raise KubeConfigError(
            "no API server is configured: give --kubeconfig, set KUBECONFIG, or run inside a cluster "
            "(KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set)"
        )
    return _in_cluster(host, port, service_account)


def with_server(config: KubeConfig, url: str, origin: str) -> KubeConfig:
    """Return the same identity at another server. Raises KubeConfigError that names `origin`."""
    return msgspec.structs.replace(config, server=parse_server_url(url, origin))


def _in_cluster(host: str, port: str, folder: Path) -> KubeConfig:
    config = KubeConfig(
        source=f"in-cluster, service account in {folder}",
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        certificate_authority=CredentialSource(
            field="in-cluster certificate authority", file=folder / "ca.crt"
        ),
        token=CredentialSource(field="in-cluster service account token", file=folder / "token"),
    )
    for material in (config.certificate_authority, config.token):
        if material is not None and not material.read():
            raise KubeConfigError(f"{material.field}: {material.file} is empty")
    return config
