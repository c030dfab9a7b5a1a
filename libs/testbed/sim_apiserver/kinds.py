"""All kinds, and the rules of the small ones.

No controller acts on workloads: the process that runs the containers of a pod reports its status. Defaults of
pod specs, and selectors of access reviews, are not simulated.
"""

from __future__ import annotations

import ipaddress
import uuid
from typing import Final

from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS
from libs.testbed.sim_apiserver.nodes import NODES
from libs.testbed.sim_apiserver.resource_kind import Caller, Document, ResourceKind, update_part

_RBAC: Final = "rbac.authorization.k8s.io"
_STATUS: Final = frozenset({"status"})
_SERVICE_NETWORK: Final = ipaddress.IPv4Network("10.96.0.0/12")


def make_namespace(new: Document, caller: Caller) -> Document:
    """Return an active Namespace, with the label of its name."""
    metadata = new["metadata"]
    labels = {"kubernetes.io/metadata.name": metadata["name"], **metadata.get("labels", {})}
    return {"metadata": {**metadata, "labels": labels}, "status": {"phase": "Active"}}


def _create_pod(new: Document, caller: Caller) -> Document:
    return {**new, "status": {"phase": "Pending"}}


def _create_workload(new: Document, caller: Caller) -> Document:
    return {**new, "spec": {"replicas": 1, **new.get("spec", {})}, "status": {}}


def _create_service(new: Document, caller: Caller) -> Document:
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
