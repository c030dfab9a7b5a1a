"""All kinds, and the rules of the small ones.

No controller acts on workloads: the process that runs the containers of a pod reports its status. Defaults of
pod specs, and selectors of access reviews, are not simulated.
"""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Final, TypedDict

from libs.testbed.sim_apiserver.certificates import SIGNING_REQUESTS
from libs.testbed.sim_apiserver.nodes import NODES
from libs.testbed.sim_apiserver.refusals import (
    Cause,
    forbidden_value,
    invalid_value,
    required_value,
    too_long_value,
)
from libs.testbed.sim_apiserver.resource_kind import (
    Caller,
    Document,
    Metadata,
    MicroTime,
    ResourceKind,
    update_part,
    validate_metadata,
)

_RBAC: Final = "rbac.authorization.k8s.io"
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_LIMIT: Final = 1024 * 1024  # bytes of all values of a ConfigMap
_STATUS: Final = frozenset({"status"})


class _LeaseSpec(TypedDict, total=False):
    holderIdentity: str | None
    leaseDurationSeconds: int | None
    acquireTime: MicroTime | None
    renewTime: MicroTime | None
    leaseTransitions: int | None


class _Lease(TypedDict, total=False):
    metadata: Metadata
    spec: _LeaseSpec


class _ConfigMap(TypedDict, total=False):
    metadata: Metadata
    immutable: bool | None
    data: dict[str, str]
    binaryData: dict[str, bytes]


def _validate_lease(new: Document, old: Document | None) -> list[Cause]:
    causes, spec = validate_metadata(new, old), new.get("spec", {})
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        causes.append(invalid_value(seconds, "must be greater than 0", "spec.leaseDurationSeconds"))
    if transitions is not None and transitions < 0:
        why = "must be greater than or equal to 0"
        causes.append(invalid_value(transitions, why, "spec.leaseTransitions"))
    return causes


def _validate_event(new: Document, old: Document | None) -> list[Cause]:
    """Return a cause unless the Event is in its object's namespace, or `default` without one."""
    about = new.get("involvedObject", {}).get("namespace", "")
    if new["metadata"]["namespace"] == (about or "default"):
        return validate_metadata(new, old)
    return [invalid_value(about, "does not match event.namespace", "involvedObject.namespace")]


def _validate_map(new: Document, old: Document | None) -> list[Cause]:
    causes, size = validate_metadata(new, old), 0
    for name in ("data", "binaryData"):
        for key, value in new.get(name, {}).items():
            size += len(value.encode()) if name == "data" else len(value) * 3 // 4
            if not _KEY.fullmatch(key) or key == "." or key.startswith(".."):
                why = "a valid config key consists of alphanumeric characters, -_."
                causes.append(invalid_value(key, why, f"{name}[{key}]"))
    for key in new.get("data", {}).keys() & new.get("binaryData", {}).keys():
        causes.append(invalid_value(key, "duplicate of key present in binaryData", f"data[{key}]"))
    if size > _LIMIT:
        causes.append(too_long_value(_LIMIT, "[]"))
    if old is not None and old.get("immutable"):
        why = "field is immutable when `immutable` is set"
        changed = (name for name in ("immutable", "data", "binaryData") if old.get(name) != new.get(name))
        causes += [forbidden_value(why, name) for name in changed]
    return causes


def _validate_service_cidr(new: Document, old: Document | None) -> list[Cause]:
    causes, cidrs = validate_metadata(new, old), new.get("spec", {}).get("cidrs", [])
    if not cidrs:
        causes.append(required_value("spec.cidrs", "at least one CIDR required"))
    for index, cidr in enumerate(cidrs):
        if not _is_network(cidr):
            causes.append(invalid_value(cidr, "must be a valid CIDR value", f"spec.cidrs[{index}]"))
    if old is not None and new["spec"] != old["spec"]:
        causes.append(invalid_value(cidrs, "field is immutable", "spec.cidrs"))
    return causes


def _is_network(cidr: str) -> bool:
    try:
        ip_network(cidr)
    except ValueError:
        return False
    return "/" in cidr


def _validate_review(new: Document, old: Document | None) -> list[Cause]:
    """Return a cause unless exactly one of the two attributes is set."""
    if len({"resourceAttributes", "nonResourceAttributes"} & new.get("spec", {}).keys()) == 1:
        return []
    why = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
    return [Cause("FieldValueInvalid", why, "spec.resourceAttributes")]


def _validate_subject_review(new: Document, old: Document | None) -> list[Cause]:
    causes, spec = _validate_review(new, old), new.get("spec", {})
    if not spec.get("user") and not spec.get("groups"):
        causes.append(invalid_value("", "at least one of user or group must be specified", "spec.user"))
    return causes


def _validate_pod(new: Document, old: Document | None) -> list[Cause]:
    return validate_metadata(new, old) + _require_containers(new, "spec.containers")


def _validate_workload(new: Document, old: Document | None) -> list[Cause]:
    causes, spec = validate_metadata(new, old), new.get("spec", {})
    if not spec.get("selector", {}).get("matchLabels"):
        causes.append(required_value("spec.selector"))
    return causes + _require_containers(spec.get("template", {}), "spec.template.spec.containers")


def _require_containers(pod: Document, where: str) -> list[Cause]:
    return [] if pod.get("spec", {}).get("containers") else [required_value(where)]


def make_namespace(new: Document, caller: Caller) -> Document:
    """Return an active Namespace, with the label of its name."""
    metadata = new["metadata"]
    labels = {"kubernetes.io/metadata.name": metadata["name"], **metadata.get("labels", {})}
    return {"metadata": {**metadata, "labels": labels}, "status": {"phase": "Active"}}


def _create_pod(new: Document, caller: Caller) -> Document:
    return {**new, "status": {"phase": "Pending"}}


def _create_workload(new: Document, caller: Caller) -> Document:
    return {**new, "spec": {"replicas": 1, **new.get("spec", {})}, "status": {}}


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
        validate=_validate_workload,
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
        schema=_Lease,
        is_namespaced=True,
        requires_version=True,
        validate=_validate_lease,
    ),
    ResourceKind(
        "events",
        "Event",
        short_names=("ev",),
        is_namespaced=True,
        validate=_validate_event,
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
        schema=_ConfigMap,
        short_names=("cm",),
        is_namespaced=True,
        validate=_validate_map,
    ),
    ResourceKind("servicecidrs", "ServiceCIDR", group="networking.k8s.io", validate=_validate_service_cidr),
    ResourceKind(
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        group="authorization.k8s.io",
        is_stored=False,
        validate=_validate_review,
    ),
    ResourceKind(
        "subjectaccessreviews",
        "SubjectAccessReview",
        group="authorization.k8s.io",
        is_stored=False,
        validate=_validate_subject_review,
    ),
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
        validate=_validate_pod,
    ),
    _make_workload_kind("deployments", "Deployment", "deploy"),
    _make_workload_kind("statefulsets", "StatefulSet", "sts"),
    _make_workload_kind("daemonsets", "DaemonSet", "ds"),
    ResourceKind("services", "Service", short_names=("svc",), is_namespaced=True),
    ResourceKind(
        "serviceaccounts", "ServiceAccount", group="talos.dev", version="v1alpha1", is_namespaced=True
    ),
)
