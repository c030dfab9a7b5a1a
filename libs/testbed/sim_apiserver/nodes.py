"""Nodes: schema, admission, defaults and validation."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType, field
from msgspec.structs import replace

from libs.testbed.sim_apiserver.objects import (
    Caller,
    Meta,
    ResourceKind,
    Time,
    validate_key,
    validate_label_value,
    validate_metadata,
)
from libs.testbed.sim_apiserver.refusals import (
    Cause,
    duplicate_value,
    forbidden_value,
    invalid_value,
    required_value,
    unsupported_value,
)

# Only canonical quantities: the real server rewrites others ("4000m" becomes "4").
Quantity = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9]\d*)(Ki|Mi|Gi|Ti)?$")]

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class Taint(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """Key and effect are always present; their pair is unique."""

    key: str = field(default_factory=str)  # a factory, so that the field is always encoded
    value: str = ""
    effect: str = field(default_factory=str)
    time_added: Time | None = None


NOT_READY: Final = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """spec, limited to the fields that are written here."""

    pod_cidr: str = field(name="podCIDR", default="")
    pod_cidrs: list[str] = field(name="podCIDRs", default_factory=list)
    provider_id: str = field(name="providerID", default="")
    taints: list[Taint] = []
    unschedulable: bool = False


class Address(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One element of status.addresses."""

    type: str
    address: str


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One element of status.conditions; missing times are encoded as null."""

    type: str
    status: str = ""
    last_heartbeat_time: Time | None = None
    last_transition_time: Time | None = None
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


class KubeletEndpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The port of a kubelet."""

    port: int = field(name="Port", default=0)


class DaemonEndpoints(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Always present, even if empty."""

    kubelet_endpoint: KubeletEndpoint = field(default_factory=KubeletEndpoint)


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Always present, even if empty."""

    machine_id: str = field(name="machineID", default="")
    system_uuid: str = field(name="systemUUID", default="")
    boot_id: str = field(name="bootID", default="")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    kube_proxy_version: str = ""
    operating_system: str = ""
    architecture: str = ""


class NodeStatus(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """status, without images, volumes and features."""

    capacity: dict[str, Quantity] = {}
    allocatable: dict[str, Quantity] = {}
    phase: str = ""
    conditions: list[Condition] = []
    addresses: list[Address] = []
    daemon_endpoints: DaemonEndpoints = field(default_factory=DaemonEndpoints)
    node_info: NodeInfo = field(default_factory=NodeInfo)


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Node on the wire, without kind and apiVersion."""

    metadata: Meta = field(default_factory=Meta)
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


def prepare_new_node(new: Node, caller: Caller) -> Node:
    """Add the not-ready taint to a new Node (admission plugin TaintNodesByCondition)."""
    taints = list(new.spec.taints)
    if not any((one.key, one.effect) == (NOT_READY.key, NOT_READY.effect) for one in taints):
        taints.append(NOT_READY)
    return _set_defaults(replace(new, spec=replace(new.spec, taints=taints)))


def apply_node_update(old: Node, new: Node, subresource: str, caller: Caller) -> Node:
    """Apply an update: the Node's own path keeps the status, nodes/status the spec; both write metadata."""
    if subresource == "status":
        return _set_defaults(replace(new, spec=old.spec))
    return _set_defaults(replace(new, status=old.status))


def remove_not_ready_taint(node: Node) -> Node:
    """Return the Node without its not-ready taint if it is Ready, as kube-controller-manager does."""
    if not any(one.type == "Ready" and one.status == "True" for one in node.status.conditions):
        return node
    taints = [one for one in node.spec.taints if one.key != NOT_READY.key]
    return replace(node, spec=replace(node.spec, taints=taints))


def _set_defaults(node: Node) -> Node:
    spec, status = node.spec, node.status
    if spec.pod_cidr and spec.pod_cidrs[:1] != [spec.pod_cidr]:  # the older field wins
        spec = replace(spec, pod_cidrs=[spec.pod_cidr])
    elif spec.pod_cidrs and not spec.pod_cidr:
        spec = replace(spec, pod_cidr=spec.pod_cidrs[0])
    if status.capacity and not status.allocatable:
        status = replace(status, allocatable=status.capacity)
    return replace(node, spec=spec, status=status)


def validate_node(new: Node, old: Node | None) -> list[Cause]:
    """Return the causes of an invalid Node, with the real server's field names (taints are in "metadata")."""
    causes = validate_metadata(new.metadata, old.metadata if old else None)
    causes += _validate_taints(new.spec.taints)
    causes += _validate_pod_cidrs(new.spec.pod_cidrs)
    seen: list[Address] = []
    for at, address in enumerate(new.status.addresses):
        if address in seen:
            causes.append(duplicate_value(msgspec.json.encode(address).decode(), f"status.addresses[{at}]"))
        seen.append(address)
    if old is not None:
        for name, before, after in (
            ("podCIDR", old.spec.pod_cidrs, new.spec.pod_cidrs),
            ("providerID", old.spec.provider_id, new.spec.provider_id),
        ):
            if before and after != before:
                why = f'node updates may not change {name} except from "" to valid'
                path = "spec.podCIDRs" if name == "podCIDR" else "spec.providerID"
                causes.append(forbidden_value(why, path))
    return causes


def _validate_taints(taints: list[Taint]) -> Iterable[Cause]:
    seen: set[tuple[str, str]] = set()
    for at, taint in enumerate(taints):
        where = f"metadata.taints[{at}]"
        yield from validate_key(taint.key, f"{where}.key")
        yield from validate_label_value(taint.value, f"{where}.value")
        if not taint.effect:
            yield required_value(f"{where}.effect")
        elif taint.effect not in _EFFECTS:
            yield unsupported_value(taint.effect, _EFFECTS, f"{where}.effect")
        elif (taint.key, taint.effect) in seen:
            value = msgspec.json.encode(taint).decode()
            yield duplicate_value(f"{value}: taints must be unique by key and effect pair", where)
        seen.add((taint.key, taint.effect))


def _validate_pod_cidrs(cidrs: list[str]) -> Iterable[Cause]:
    families: list[int] = []
    for at, cidr in enumerate(cidrs):
        try:
            families.append(ipaddress.ip_network(cidr).version)
        except ValueError:
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            yield invalid_value(cidr, why, f"spec.podCIDRs[{at}]")
    if len(set(families)) != len(families):
        value = msgspec.json.encode(cidrs).decode()
        why = f"Invalid value: {value}: may specify no more than one CIDR for each IP family"
        yield Cause("FieldValueInvalid", why, "spec.podCIDRs")


NODES: Final = ResourceKind(
    "nodes",
    "Node",
    Node,
    short_names=("no",),
    subresources=frozenset({"status"}),
    supports_strategic_patch=True,
    on_create=prepare_new_node,
    on_update=apply_node_update,
    validate=validate_node,
)
