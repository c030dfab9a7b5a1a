"""Whether kubelets ask for serving certificates, by their own settings, through the API server."""

import asyncio
import json
from typing import Any, Final

from cli.doctor.ask_kubernetes import Ask, or_not
from cli.doctor.seen import NotSeen, Seen
from libs.common.kube_api.errors import KubeError
from libs.common.node import Node

_KUBELETS: Final = 50  # that are asked
_SECONDS: Final = 5.0
_MOST_BYTES: Final = 2**20  # a kubelet's settings are some thousand; what it says is its own affair


async def serving(ask_kube: Ask, seen: Seen) -> dict[str, bool | NotSeen]:
    """Whether kubelets ask for serving certificates, of those whose request does not show it."""
    if isinstance(seen.nodes, NotSeen) or isinstance(seen.requests, NotSeen):
        return {}
    filed = {one.request.node_name for one in seen.requests}
    silent = [node.name for node in seen.nodes if node.name not in filed and _is_ready(node)][:_KUBELETS]
    if not silent or not seen.installation.runs("csr"):
        return {}
    async with ask_kube.apart(len(silent)) as ask:
        told = await asyncio.gather(*(or_not(bootstraps(ask, name), "get nodes/proxy") for name in silent))
    return dict(zip(silent, told, strict=True))


async def bootstraps(ask_kube: Ask, name: str) -> bool:
    """As the kubelet's own settings say (--rotate-server-certificates is serverTLSBootstrap)."""
    path = f"/api/v1/nodes/{name}/proxy/configz"
    text = await ask_kube.read(path, seconds=_SECONDS, most_bytes=_MOST_BYTES)
    try:
        settings: Any = json.loads(text)["kubeletconfig"]
        return bool(settings.get("serverTLSBootstrap", False))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise KubeError(f"its settings cannot be read: {error!r}") from error


def _is_ready(node: Node) -> bool:
    ready = node.find_condition("Ready")
    return ready is not None and ready.status == "True"
