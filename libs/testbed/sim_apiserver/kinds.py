"""All kinds, and the rules of all but certificate requests.

No controller acts on workloads: the process that runs the containers of a pod reports its status. Defaults of
pod specs, and selectors of access reviews, are not simulated.
"""

from __future__ import annotations

import ipaddress
import uuid
from typing import Final

from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS
from libs.testbed.sim_apiserver.refusals import invalid
from libs.testbed.sim_apiserver.resource_kind import Document, Identity, ResourceKind, update_part

_RBAC: Final = "rbac.authorization.k8s.io"
_STATUS: Final = frozenset({"status"})
_SERVICE_NETWORK: Final = ipaddress.IPv4Network("10.96.0.0/12")


def make_namespace(new: Document, identity: Identity) -> Document:
    """Return an active Namespace, with the label of its name."""
    metadata = new["metadata"]
    labels = {"kubernetes.io/metadata.name": metadata["name"], **metadata.get("labels", {})}
    return {"metadata": {**metadata, "labels": labels}, "status": {"phase": "Active"}}


def _create_pod(new: Document, identity: Identity) -> Document:
    return {**new, "status": {"phase": "Pending"}}


def _create_workload(new: Document, identity: Identity) -> Document:
    return {**new, "spec": {"replicas": 1, **new.get("spec", {})}, "status": {}}


def _create_service(new: Document, identity: Identity) -> Document:
    spec = {"type": "ClusterIP", **new.get("spec", {})}
    if spec["type"] != "ExternalName":
        host = uuid.UUID(new["metadata"]["uid"]).int % _SERVICE_NETWORK.num_addresses
        spec.setdefault("clusterIP", str(_SERVICE_NETWORK[host]))
        spec["clusterIPs"] = [spec["clusterIP"]]
    return {**new, "spec": spec, "status": {"loadBalancer": {}}}


def _make_workload_kind(plural: str, kind: str, short_name: str) -> ResourceKind:
    return ResourceKind(
        plural,
        kind,
        group="apps",
        short_names=(short_name,),
        is_namespaced=True,
        subresources=_STATUS,
        on_create=_create_workload,
        on_update=update_part,
    )


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
_NODE_STATUS: Final = {
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
    "nodeInfo": dict.fromkeys(_NODE_INFO, ""),
}


def prepare_new_node(new: Document, identity: Identity) -> Document:
    """Add the not-ready taint to a new Node (admission plugin TaintNodesByCondition)."""
    spec = new.get("spec", {})
    taints = spec.get("taints", [])
    if not any((one.get("key"), one.get("effect")) == tuple(_NOT_READY.values()) for one in taints):
        taints = [*taints, _NOT_READY]
    return _set_node_defaults({**new, "spec": {**spec, "taints": taints}})


def apply_node_update(old: Document, new: Document, subresource: str, now: str) -> Document:
    """Apply an update: the Node's own path keeps the status, nodes/status the spec; both write metadata."""
    return _set_node_defaults(update_part(old, new, subresource, now))


def remove_not_ready_taint(node: Document) -> Document:
    """Return the Node without its not-ready taint if it is Ready, as kube-controller-manager does."""
    conditions = node["status"].get("conditions", [])
    if not any((one["type"], one.get("status")) == ("Ready", "True") for one in conditions):
        return node
    taints = [one for one in node["spec"].get("taints", []) if one["key"] != _NOT_READY["key"]]
    return {**node, "spec": {**node["spec"], "taints": taints}}


def _set_node_defaults(node: Document) -> Document:
    spec, status = dict(node.get("spec", {})), _NODE_STATUS | node.get("status", {})
    if (first := spec.get("podCIDR")) and spec.get("podCIDRs", [])[:1] != [first]:  # the older field wins
        spec["podCIDRs"] = [first]
    elif spec.get("podCIDRs") and not first:
        spec["podCIDR"] = spec["podCIDRs"][0]
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = status["capacity"]
    status["nodeInfo"] = _NODE_STATUS["nodeInfo"] | status["nodeInfo"]
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
NAMESPACES: Final = ResourceKind("namespaces", "Namespace", short_names=("ns",), on_create=make_namespace)
KINDS: Final = (
    NODES,
    SIGNING_REQUESTS,
    NAMESPACES,
    ResourceKind(
        "leases",
        "Lease",
        group="coordination.k8s.io",
        is_namespaced=True,
        requires_version=True,
    ),
    ResourceKind(
        "events",
        "Event",
        short_names=("ev",),
        is_namespaced=True,
        field_selectors=(
            "metadata.name",
            "metadata.namespace",
            "type",
            "involvedObject.uid",
            "involvedObject.name",
            "involvedObject.kind",
        ),
    ),
    ResourceKind(
        "configmaps",
        "ConfigMap",
        short_names=("cm",),
        is_namespaced=True,
    ),
    ResourceKind("servicecidrs", "ServiceCIDR", group="networking.k8s.io"),
    ResourceKind(
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        group="authorization.k8s.io",
        is_stored=False,
    ),
    ResourceKind(
        "subjectaccessreviews",
        "SubjectAccessReview",
        group="authorization.k8s.io",
        is_stored=False,
    ),
    ResourceKind("tokenreviews", "TokenReview", group="authentication.k8s.io", is_stored=False),
    ResourceKind("clusterroles", "ClusterRole", group=_RBAC),
    ResourceKind("clusterrolebindings", "ClusterRoleBinding", group=_RBAC),
    ResourceKind("roles", "Role", group=_RBAC, is_namespaced=True),
    ResourceKind("rolebindings", "RoleBinding", group=_RBAC, is_namespaced=True),
    ResourceKind(
        "pods",
        "Pod",
        short_names=("po",),
        is_namespaced=True,
        subresources=_STATUS,
        supports_strategic_patch=True,
        on_create=_create_pod,
        on_update=update_part,
    ),
    _make_workload_kind("deployments", "Deployment", "deploy"),
    _make_workload_kind("statefulsets", "StatefulSet", "sts"),
    _make_workload_kind("daemonsets", "DaemonSet", "ds"),
    ResourceKind(
        "services",
        "Service",
        short_names=("svc",),
        is_namespaced=True,
        subresources=_STATUS,
        field_selectors=("metadata.name", "metadata.namespace"),
        on_create=_create_service,
        on_update=update_part,
    ),
    ResourceKind(
        "serviceaccounts", "ServiceAccount", group="talos.dev", version="v1alpha1", is_namespaced=True
    ),
)
