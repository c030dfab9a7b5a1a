"""What kubectl requests: health, version, discovery, and tables of nodes, requests and services."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from libs.testbed.sim_apiserver.certificates import has_condition
from libs.testbed.sim_apiserver.kinds import KINDS
from libs.testbed.sim_apiserver.resource_kind import Document, ResourceKind

VERSION: Final = {"major": "1", "minor": "36", "gitVersion": "v1.36.3", "platform": "simulated"}
HEALTH: Final = ("/readyz", "/healthz", "/livez")
_VERBS: Final = ("create", "delete", "get", "list", "patch", "update", "watch")
_VERBS_OF_PARTS: Final = ("get", "patch", "update")  # of nodes/status and the like


def build_documents(kinds: Iterable[ResourceKind]) -> dict[str, Any]:
    """Return the documents by path: the groups, their versions, and the resources of each version."""
    by_group: dict[str, list[ResourceKind]] = {}
    for kind in kinds:
        by_group.setdefault(kind.group, []).append(kind)
    groups = [_build_group(name, by_group[name][0]) for name in sorted(by_group) if name]
    found: dict[str, Any] = {
        "/version": VERSION,
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    found |= {f"/apis/{group['name']}": {"kind": "APIGroup", "apiVersion": "v1"} | group for group in groups}
    for group_kinds in by_group.values():
        version = group_kinds[0].api_version
        resources = [resource for kind in group_kinds for resource in _build_resources(kind)]
        where = "/apis" if group_kinds[0].group else "/api"
        found[f"{where}/{version}"] = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": resources,
        }
    return found


def _build_group(name: str, kind: ResourceKind) -> dict[str, Any]:
    version = {"groupVersion": kind.api_version, "version": kind.version}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _build_resources(kind: ResourceKind) -> list[dict[str, Any]]:
    common = {"namespaced": kind.is_namespaced, "kind": kind.kind}
    whole = {"name": kind.plural, "singularName": kind.kind.lower()} | common
    whole["verbs"] = list(_VERBS) if kind.is_stored else ["create"]
    if kind.short_names:
        whole["shortNames"] = list(kind.short_names)
    parts = [
        {"name": f"{kind.plural}/{part}", "singularName": ""} | common | {"verbs": list(_VERBS_OF_PARTS)}
        for part in sorted(kind.subresources)
    ]
    return [whole, *parts]


DOCUMENTS: Final = {path: msgspec.json.encode(body) for path, body in build_documents(KINDS).items()}
PUBLIC_PATHS: Final = {"/version", *HEALTH}  # also for anonymous users; the others require authentication


_WANTED: Final = {"as=Table", "v=v1", "g=meta.k8s.io"}
_ROLE: Final = "node-role.kubernetes.io/"


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
    kind: ResourceKind, items: Iterable[Document], metadata: Mapping[str, Any], now: datetime
) -> bytes:
    """Return the Table; `metadata` is that of the list, or the version of a single object."""
    names, cells = _KINDS[kind.plural]
    columns = [
        {
            "name": name,
            "type": "string",
            "format": "name" if name == "Name" else "",
            "description": name,
            "priority": 0,
        }
        for name in names
    ]
    about = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    table = {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": [
            {"cells": cells(item, now), "object": {**about, "metadata": item["metadata"]}} for item in items
        ],
    }
    return msgspec.json.encode(table)


def _format_node(node: Document, now: datetime) -> list[str]:
    return [
        node["metadata"]["name"],
        _format_status(node),
        _format_roles(node),
        _format_age(node, now),
        node["status"]["nodeInfo"]["kubeletVersion"],
    ]


def _format_request(request: Document, now: datetime) -> list[str]:
    spec = request["spec"]
    decided = next((kind for kind in ("Denied", "Approved") if has_condition(request, kind)), "Pending")
    failed = ",Failed" if has_condition(request, "Failed") else ""
    return [
        request["metadata"]["name"],
        _format_age(request, now),
        spec["signerName"],
        spec["username"],
        _format_duration(spec["expirationSeconds"]) if "expirationSeconds" in spec else "<none>",
        f"{decided}{failed}{',Issued' if 'certificate' in request['status'] else ''}",
    ]


def _format_service(service: Document, now: datetime) -> list[str]:
    spec = service["spec"]
    return [
        service["metadata"]["name"],
        spec["type"],
        spec.get("clusterIP", "<none>"),
        _format_external_addresses(service),
        ",".join(map(_format_port, spec.get("ports", []))) or "<none>",
        _format_age(service, now),
    ]


def _format_external_addresses(service: Document) -> str:
    spec, ingress = service["spec"], service["status"].get("loadBalancer", {}).get("ingress", [])
    if spec["type"] == "ExternalName":
        return str(spec["externalName"])
    addresses = sorted({each.get("ip") or each.get("hostname", "") for each in ingress} - {""})
    missing = "<pending>" if spec["type"] == "LoadBalancer" else "<none>"
    return ",".join([*addresses, *spec.get("externalIPs", [])]) or missing


def _format_port(port: Document) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}"


def _format_status(node: Document) -> str:
    conditions = {one["type"]: one.get("status", "") for one in node["status"].get("conditions", [])}
    ready = conditions.get("Ready")
    word = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return f"{word},SchedulingDisabled" if node["spec"].get("unschedulable") else word


def _format_roles(node: Document) -> str:
    labels = node["metadata"].get("labels", {})
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)} - {""}
    return ",".join(sorted(roles | {labels.get("kubernetes.io/role", "")} - {""})) or "<none>"


def _format_age(item: Document, now: datetime) -> str:
    created = datetime.fromisoformat(item["metadata"]["creationTimestamp"])
    return _format_duration(max(0, int((now - created).total_seconds())))


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


# The columns, without those that `kubectl -o wide` adds.
_OF_NODES: Final = ("Name", "Status", "Roles", "Age", "Version")
_OF_REQUESTS: Final = ("Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition")
_OF_SERVICES: Final = ("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age")
_KINDS: Final[dict[str, tuple[tuple[str, ...], Callable[[Document, datetime], list[str]]]]] = {
    "nodes": (_OF_NODES, _format_node),
    "certificatesigningrequests": (_OF_REQUESTS, _format_request),
    "services": (_OF_SERVICES, _format_service),
}
