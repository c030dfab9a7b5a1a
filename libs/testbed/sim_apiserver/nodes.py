"""Nodes: admission, defaults and validation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypedDict

import msgspec

from libs.testbed.sim_apiserver.refusals import (
    Cause,
    duplicate_value,
    forbidden_value,
    required_value,
    unsupported_value,
)
from libs.testbed.sim_apiserver.resource_kind import (
    Caller,
    Document,
    Metadata,
    ResourceKind,
    update_part,
    validate_key,
    validate_label_value,
    validate_metadata,
)

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NOT_READY: Final = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_NODE_INFO: Final = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)
# Always present, even if empty.
_STATUS: Final = {
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
    "nodeInfo": dict.fromkeys(_NODE_INFO, ""),
}


class _Spec(TypedDict, total=False):
    podCIDR: str
    podCIDRs: list[str]
    providerID: str
    taints: list[dict[str, str | None]]
    unschedulable: bool


class _Status(TypedDict, total=False):
    conditions: list[dict[str, str | None]]
    addresses: list[dict[str, str]]
    nodeInfo: dict[str, str]


class _Node(TypedDict, total=False):
    metadata: Metadata
    spec: _Spec
    status: _Status


def prepare_new_node(new: Document, caller: Caller) -> Document:
    """Add the not-ready taint to a new Node (admission plugin TaintNodesByCondition)."""
    spec = new.get("spec", {})
    taints = spec.get("taints", [])
    if not any((one.get("key"), one.get("effect")) == tuple(_NOT_READY.values()) for one in taints):
        taints = [*taints, _NOT_READY]
    return _set_defaults({**new, "spec": {**spec, "taints": taints}})


def apply_node_update(old: Document, new: Document, subresource: str, caller: Caller) -> Document:
    """Apply an update: the Node's own path keeps the status, nodes/status the spec; both write metadata."""
    return _set_defaults(update_part(old, new, subresource, caller))


def remove_not_ready_taint(node: Document) -> Document:
    """Return the Node without its not-ready taint if it is Ready, as kube-controller-manager does."""
    conditions = node["status"].get("conditions", [])
    if not any((one["type"], one.get("status")) == ("Ready", "True") for one in conditions):
        return node
    taints = [one for one in node["spec"].get("taints", []) if one["key"] != _NOT_READY["key"]]
    return {**node, "spec": {**node["spec"], "taints": taints}}


def _set_defaults(node: Document) -> Document:
    spec, status = dict(node.get("spec", {})), _STATUS | node.get("status", {})
    if (first := spec.get("podCIDR")) and spec.get("podCIDRs", [])[:1] != [first]:  # the older field wins
        spec["podCIDRs"] = [first]
    elif spec.get("podCIDRs") and not first:
        spec["podCIDR"] = spec["podCIDRs"][0]
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = status["capacity"]
    status["nodeInfo"] = _STATUS["nodeInfo"] | status["nodeInfo"]
    return {**node, "spec": spec, "status": status}


def validate_node(new: Document, old: Document | None) -> list[Cause]:
    """Return the causes of a Node with invalid metadata, or with another podCIDR or providerID."""
    spec = new["spec"]
    causes = validate_metadata(new, old)
    causes += _validate_taints(spec.get("taints", []))
    before = old["spec"] if old else {}
    for field, name in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
        if before.get(field) and spec.get(field) != before[field]:
            why = f'node updates may not change {name} except from "" to valid'
            causes.append(forbidden_value(why, f"spec.{field}"))
    return causes


def _validate_taints(taints: list[dict[str, Any]]) -> Iterable[Cause]:
    seen: set[tuple[str, str]] = set()
    for at, taint in enumerate(taints):
        where, pair = f"metadata.taints[{at}]", (taint.get("key", ""), taint.get("effect", ""))
        yield from validate_key(pair[0], f"{where}.key")
        yield from validate_label_value(taint.get("value") or "", f"{where}.value")
        if not pair[1]:
            yield required_value(f"{where}.effect")
        elif pair[1] not in _EFFECTS:
            yield unsupported_value(pair[1], _EFFECTS, f"{where}.effect")
        elif pair in seen:
            value = msgspec.json.encode(taint).decode()
            yield duplicate_value(f"{value}: taints must be unique by key and effect pair", where)
        seen.add(pair)


NODES: Final = ResourceKind(
    "nodes",
    "Node",
    schema=_Node,
    short_names=("no",),
    subresources=frozenset({"status"}),
    supports_strategic_patch=True,
    on_create=prepare_new_node,
    on_update=apply_node_update,
    validate=validate_node,
)
