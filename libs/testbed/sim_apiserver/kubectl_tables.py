"""Tables for `kubectl get nodes` and `kubectl get csr`: columns and cells of kube-apiserver 1.36. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET

from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS, SigningRequest
from libs.testbed.sim_apiserver.nodes import NODES, Node, NodeInfo
from libs.testbed.sim_apiserver.objects import ResourceKind

_WANTED: Final = {"as=Table", "v=v1", "g=meta.k8s.io"}
_ROLE: Final = "node-role.kubernetes.io/"
# `kubectl -o wide` adds the columns of priority 1.
_OF_NODES: Final = {
    "Name": 0,
    "Status": 0,
    "Roles": 0,
    "Age": 0,
    "Version": 0,
    "Internal-IP": 1,
    "External-IP": 1,
    "OS-Image": 1,
    "Kernel-Version": 1,
    "Container-Runtime": 1,
}


def wants_table(accept: str) -> bool:
    """Whether an Accept header prefers a Table to the objects."""
    for one in accept.split(","):
        parts = {part.strip() for part in one.split(";")}
        if parts >= _WANTED:
            return True
        if parts == {"application/json"}:
            return False
    return False


def has_table(kind: ResourceKind) -> bool:
    """Whether the server renders Tables of the kind."""
    return kind.plural in _KINDS


def render_table(
    kind: ResourceKind, items: Iterable[Any], metadata: Mapping[str, Any], now: datetime
) -> bytes:
    """Return the Table; `metadata` is that of the list, or the version of a single object."""
    priorities, cells = _KINDS[kind.plural]
    columns = [
        {
            "name": name,
            "type": "string",
            "format": "name" if name == "Name" else "",
            "description": name,
            "priority": priority,
        }
        for name, priority in priorities.items()
    ]
    about = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    table = {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": [
            {"cells": cells(item, now), "object": {**about, "metadata": item.metadata}} for item in items
        ],
    }
    return msgspec.json.encode(table)


def _format_node(node: Node, now: datetime) -> list[str]:
    info = node.status.node_info
    return [
        node.metadata.name,
        _format_status(node),
        _format_roles(node),
        _format_age(node.metadata.creation_timestamp, now),
        info.kubelet_version,
        _get_address(node, "InternalIP"),
        _get_address(node, "ExternalIP"),
        info.os_image or "<unknown>",
        _kernel(info),
        info.container_runtime_version or "<unknown>",
    ]


def _format_request(request: SigningRequest, now: datetime) -> list[str]:
    wanted = request.spec.expiration_seconds
    return [
        request.metadata.name,
        _format_age(request.metadata.creation_timestamp, now),
        request.spec.signer_name,
        request.spec.username,
        "<none>" if wanted is UNSET else _format_duration(wanted),
        _format_condition(request),
    ]


def _format_condition(request: SigningRequest) -> str:
    decided = next((kind for kind in ("Denied", "Approved") if request.has_condition(kind)), "Pending")
    failed = ",Failed" if request.has_condition("Failed") else ""
    return f"{decided}{failed}{',Issued' if request.status.certificate else ''}"


def _format_status(node: Node) -> str:
    ready = next((one.status for one in node.status.conditions if one.type == "Ready"), None)
    word = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return f"{word},SchedulingDisabled" if node.spec.unschedulable else word


def _format_roles(node: Node) -> str:
    labels = node.metadata.labels
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)} - {""}
    return ",".join(sorted(roles | {labels.get("kubernetes.io/role", "")} - {""})) or "<none>"


def _kernel(info: NodeInfo) -> str:
    kernel = info.kernel_version or "<unknown>"
    return f"{kernel} ({info.architecture})" if info.architecture else kernel


def _get_address(node: Node, kind: str) -> str:
    return next((one.address for one in node.status.addresses if one.type == kind), "<none>")


def _format_age(created: str | None, now: datetime) -> str:
    """Return the age as kubectl formats it."""
    if created is None:
        return "<unknown>"
    return _format_duration(max(0, int((now - datetime.fromisoformat(created)).total_seconds())))


def _format_duration(seconds: int) -> str:
    minutes, hours = seconds // 60, seconds // 3600
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d"  # simulated clusters live for hours, and requests have at most a year


_OF_REQUESTS: Final = dict.fromkeys(
    ("Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition"), 0
)
_KINDS: Final[dict[str, tuple[dict[str, int], Callable[[Any, datetime], list[str]]]]] = {
    NODES.plural: (_OF_NODES, _format_node),
    SIGNING_REQUESTS.plural: (_OF_REQUESTS, _format_request),
}
