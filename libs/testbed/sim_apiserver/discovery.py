"""Health, version and discovery of resources, which kubectl requests first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from libs.testbed.sim_apiserver.kinds import KINDS
from libs.testbed.sim_apiserver.resource_kind import ResourceKind

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
