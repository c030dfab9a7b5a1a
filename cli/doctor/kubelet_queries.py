"""Queries through the API server whether kubelets request serving certificates."""

import asyncio
import json
from typing import Any, Final

from cli.cluster.kube_reader import KubeReader, get_or_unavailable
from cli.cluster.unavailable import Unavailable
from cli.doctor.installation_snapshot import InstallationSnapshot
from libs.common.contract.node import Node
from libs.common.kube.errors import KubeError

_MAX_KUBELETS: Final = 50  # limit for queried kubelets
_TIMEOUT_SECONDS: Final = 5.0
_MAX_BYTES: Final = 2**20  # a kubelet's settings have a few kB; a larger response is rejected


async def query_serving_certificates(
    ask_kube: KubeReader, seen: InstallationSnapshot
) -> dict[str, bool | Unavailable]:
    """Return by Node whether its kubelet requests serving certificates.

    Only ready Nodes without a request are queried.
    """
    if isinstance(seen.nodes, Unavailable) or isinstance(seen.requests, Unavailable):
        return {}
    filed = {one.signing_request.node_name for one in seen.requests}
    silent = [node.name for node in seen.nodes if node.name not in filed and _is_ready(node)][:_MAX_KUBELETS]
    if not silent or not seen.installation.runs_service("csr"):
        return {}
    async with ask_kube.with_connections(len(silent)) as ask:
        told = await asyncio.gather(
            *(get_or_unavailable(query_server_tls_bootstrap(ask, name), "get nodes/proxy") for name in silent)
        )
    return dict(zip(silent, told, strict=True))


async def query_server_tls_bootstrap(ask_kube: KubeReader, name: str) -> bool:
    """Return serverTLSBootstrap of the kubelet's settings (flag --rotate-server-certificates)."""
    path = f"/api/v1/nodes/{name}/proxy/configz"
    text = await ask_kube.get_bytes(path, seconds=_TIMEOUT_SECONDS, most_bytes=_MAX_BYTES)
    try:
        settings: Any = json.loads(text)["kubeletconfig"]
        return bool(settings.get("serverTLSBootstrap", False))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise KubeError(f"its configuration is unreadable: {error!r}") from error


def _is_ready(node: Node) -> bool:
    ready = node.find_condition("Ready")
    return ready is not None and ready.status == "True"
