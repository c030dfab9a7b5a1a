"""Nodes: admission, defaults, and what must not change. Pure."""

from __future__ import annotations

from typing import Final

from libs.testbed.sim_apiserver.refusals import invalid
from libs.testbed.sim_apiserver.resource_kind import Caller, Document, ResourceKind, update_part

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


def check_node_update(old: Document, new: Document) -> None:
    """Raise Refusal for another podCIDR or providerID than the Node has."""
    for field, name in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
        if old["spec"].get(field) and new["spec"].get(field) != old["spec"][field]:
            why = f'node updates may not change {name} except from "" to valid'
            about = NODES.make_reference(new["metadata"]["name"])
            raise invalid(about, f"spec.{field}", "Forbidden", why)


NODES: Final = ResourceKind(
    "nodes",
    "Node",
    short_names=("no",),
    subresources=frozenset({"status"}),
    supports_strategic_patch=True,
    on_create=prepare_new_node,
    on_update=apply_node_update,
    check_update=check_node_update,
)
