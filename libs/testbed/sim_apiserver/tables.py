"""Nodes as a Table, for `kubectl get nodes`: columns and cells of kube-apiserver 1.36. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from libs.testbed.sim_apiserver.nodes import Node, NodeInfo

_WANTED: Final = {"as=Table", "v=v1", "g=meta.k8s.io"}
_ROLE: Final = "node-role.kubernetes.io/"
# Those of priority 1 are shown by `-o wide` only.
_COLUMNS: Final = {
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
    """Whether an Accept header asks for a Table before it asks for the objects themselves."""
    for one in accept.split(","):
        parts = {part.strip() for part in one.split(";")}
        if parts >= _WANTED:
            return True
        if parts == {"application/json"}:
            return False
    return False


def node_table(nodes: Iterable[Node], metadata: Mapping[str, Any], now: datetime) -> bytes:
    """The whole Table; `metadata` is that of the list, or the version of the single Node."""
    columns = [
        {
            "name": name,
            "type": "string",
            "format": "name" if name == "Name" else "",
            "description": name,
            "priority": priority,
        }
        for name, priority in _COLUMNS.items()
    ]
    table = {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": [_row(node, now) for node in nodes],
    }
    return msgspec.json.encode(table)


def _row(node: Node, now: datetime) -> dict[str, Any]:
    about = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": node.metadata}
    info = node.status.node_info
    cells = [
        node.metadata.name,
        _status(node),
        _roles(node),
        _age(node.metadata.creation_timestamp, now),
        info.kubelet_version,
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        info.os_image or "<unknown>",
        _kernel(info),
        info.container_runtime_version or "<unknown>",
    ]
    return {"cells": cells, "object": about}


def _status(node: Node) -> str:
    ready = next((one.status for one in node.status.conditions if one.type == "Ready"), None)
    word = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return f"{word},SchedulingDisabled" if node.spec.unschedulable else word


def _roles(node: Node) -> str:
    labels = node.metadata.labels
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)} - {""}
    return ",".join(sorted(roles | {labels.get("kubernetes.io/role", "")} - {""})) or "<none>"


def _kernel(info: NodeInfo) -> str:
    kernel = info.kernel_version or "<unknown>"
    return f"{kernel} ({info.architecture})" if info.architecture else kernel


def _address(node: Node, kind: str) -> str:
    return next((one.address for one in node.status.addresses if one.type == kind), "<none>")


def _age(created: str | None, now: datetime) -> str:
    """As kubectl tells ages, of which a simulated cluster reaches hours at most."""
    if created is None:
        return "<unknown>"
    seconds = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    minutes, hours = seconds // 60, seconds // 3600
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    return f"{minutes}m" if minutes < 180 else f"{hours}h"
