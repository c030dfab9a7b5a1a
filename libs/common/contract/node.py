"""The fields of a Kubernetes Node that this project reads, with the structure and names of core/v1."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

PartT = TypeVar("PartT")

# Written by a kubelet with --cloud-provider=external.
PROVIDED_NODE_IP_ANNOTATION = "alpha.kubernetes.io/provided-node-ip"
UNINITIALIZED_TAINT = "node.cloudprovider.kubernetes.io/uninitialized"
# NodeRestriction prevents kubelets from writing labels with this prefix.
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
# Lists the fields that the labeler has set on the Node, and so may change and remove.
FIELD_OWNERSHIP_ANNOTATION = "node.cloudprovider.kubernetes.io/talos-ccm-owned"
# Label with a digest of that annotation. A kubelet may write annotations of its Node, but no label of this
# prefix.
FIELD_OWNERSHIP_DIGEST_LABEL = "talos-ccm.node-restriction.kubernetes.io/record"
# Set by an operator: the labeler then sets the withheld taints of the Node once, and removes the annotation.
APPLY_TAINTS_ANNOTATION = "node.cloudprovider.kubernetes.io/talos-ccm-apply-taints"
_RESTRICTED_PREFIX = "node-restriction.kubernetes.io"
# Condition of the labeler, with negative polarity: absent on Nodes that never failed.
BLOCKED_CONDITION = "TalosInitializationBlocked"
# Condition of the controller of routes: whether the network lacks a route to the Node's pods.
NETWORK_UNAVAILABLE = "NetworkUnavailable"
NO_ROUTE_CREATED = "NoRouteCreated"  # its reason, as in k8s.io/cloud-provider

ANNOTATION_VALUE_LIMIT = 1024  # characters; other controllers store longer values, and no rule reads them
# Lists of keys, whose length depends on the machine config or on the rules. The labeler must read them in
# full.
_READ_AT_ANY_LENGTH = ("talos.dev/owned-", FIELD_OWNERSHIP_ANNOTATION)
_IGNORED_ANNOTATIONS = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        # How long a kubelet may cache secrets. The ttl controller writes it when a Node joins, and on every
        # Node when the cluster grows beyond 100, 500, 1000 or 2000 Nodes.
        "node.alpha.kubernetes.io/ttl",
    }
)
_CONDITIONS_READ = frozenset({"Ready", BLOCKED_CONDITION})
_MAX_VERSION_DIGITS = 20  # of 64 bits; Python raises ValueError above 4300 digits


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The fields of an object's metadata that this project reads."""

    name: str
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class ApiObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An object of the Kubernetes API with its metadata."""

    metadata: ObjectMeta

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def key(self) -> str:
        """The end of the object's subjects: its name, of an object in a namespace `<namespace>.<name>`."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def resource_version_number(self) -> int:
        """The resourceVersion, parsed by `parse_resource_version`."""
        return parse_resource_version(self.metadata.resource_version)


def is_same_object(one: ApiObject, other: ApiObject) -> bool:
    """Return whether two published objects are equal, apart from their resourceVersion."""
    metadata = replace(one.metadata, resource_version=other.metadata.resource_version)
    return replace(one, metadata=metadata) == other


class Taint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One element of spec.taints; `time_added` is text, because a JSON Patch `test` compares it."""

    key: str
    value: str = ""
    effect: str
    time_added: str = ""


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a Node's spec that this project reads."""

    provider_id: str = msgspec.field(name="providerID", default="")
    pod_cidr: str = msgspec.field(name="podCIDR", default="")
    pod_cidrs: tuple[str, ...] = msgspec.field(name="podCIDRs", default=())
    taints: tuple[Taint, ...] = ()


class NodeAddress(msgspec.Struct, frozen=True, kw_only=True):
    """One element of status.addresses; `type` as in core/v1 NodeAddressType (InternalIP, Hostname, ...)."""

    type: str
    address: str


class NodeCondition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One element of status.conditions, without the heartbeat time, which would change all the time.

    `last_transition_time` is text: kubelets write it, and Kubernetes also accepts the years 0 and 10000. A
    Node that cannot be parsed would stop every client that lists Nodes.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class NodeSystemInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of status.nodeInfo that this project reads; the kubelet writes them."""

    system_uuid: str = msgspec.field(name="systemUUID", default="")


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The fields of a Node's status that this project reads."""

    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()


class Node(ApiObject, frozen=True, kw_only=True):
    """A Node as the API server encodes it in a list, a watch event or the response to a patch."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations

    @property
    def provided_node_ip(self) -> str:
        """The unparsed annotation of the kubelet; "" without --cloud-provider=external."""
        return self.metadata.annotations.get(PROVIDED_NODE_IP_ANNOTATION, "")

    @property
    def is_initialized(self) -> bool:
        """Whether the Node has no uninitialized taint, with any effect."""
        taints = self.spec.taints
        return not taints or all(taint.key != UNINITIALIZED_TAINT for taint in taints)

    def find_condition(self, kind: str) -> NodeCondition | None:
        """Return the condition of that type, None if it is absent."""
        return next((c for c in self.status.conditions if c.type == kind), None)


def is_restricted_label(key: str) -> bool:
    """Return whether Kubernetes' admission plugin NodeRestriction stops kubelets from writing this label.

    The prefix is `node-restriction.kubernetes.io/` or ends in `.node-restriction.kubernetes.io/`.
    """
    prefix, slash, _ = key.partition("/")
    return bool(slash) and f".{prefix}".endswith(f".{_RESTRICTED_PREFIX}")


def parse_resource_version(resource_version: str) -> int:
    """Return a resourceVersion as an integer (KEP-5504; greater is newer), 0 if it is not a number."""
    is_number = resource_version.isascii() and resource_version.isdigit()
    return int(resource_version) if is_number and len(resource_version) <= _MAX_VERSION_DIGITS else 0


def trim_node(node: Node, *, more_conditions: frozenset[str] = frozenset()) -> Node:
    """Return the Node for publishing, without unused conditions and without unused or too long annotations.

    Heartbeats change nothing in the result. `is_same_object` compares two results to detect a change.
    `more_conditions` are types that a controller needs which is off by default.
    """
    read = _CONDITIONS_READ | more_conditions
    metadata = node.metadata
    annotations = {
        key: value
        for key, value in metadata.annotations.items()
        if (len(value) <= ANNOTATION_VALUE_LIMIT or key.startswith(_READ_AT_ANY_LENGTH))
        and key not in _IGNORED_ANNOTATIONS
    }
    conditions = tuple(c for c in node.status.conditions if c.type in read)
    return replace(
        node,
        metadata=replace(metadata, annotations=annotations),
        status=replace(node.status, conditions=conditions),
    )


def share_equal_parts(node: Node, other: Node) -> Node:
    """Return the Node with those parts of `other` that are equal, so that memory contains them once.

    The parts are labels, annotations, spec, addresses and conditions: most of a Node.
    """
    if node is other or node == other:
        return other
    own, others = node.metadata, other.metadata
    return replace(
        node,
        metadata=replace(
            own,
            labels=_select(own.labels, others.labels),
            annotations=_select(own.annotations, others.annotations),
        ),
        spec=_select(node.spec, other.spec),
        status=replace(
            node.status,
            addresses=_select(node.status.addresses, other.status.addresses),
            conditions=_select(node.status.conditions, other.status.conditions),
        ),
    )


def _select(mine: PartT, others: PartT) -> PartT:
    return others if mine == others else mine


# ---- the fields from which a consumer of enriched Nodes may plan: a change of the others alone needs no
# further enriched message and no further plan

# Kubernetes' node controllers set and remove these taints while conditions of the node hold. No rule may set
# them.
CONDITION_TAINTS: Final = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/pid-pressure",
)
# No rule may set these either. Storage drivers and their controller write them while a Node joins.
UNPLANNED_ANNOTATIONS: Final = frozenset(
    {
        "csi.volume.kubernetes.io/nodeid",
        "volumes.kubernetes.io/controller-managed-attach-detach",
        "volumes.kubernetes.io/keep-terminated-pod-volumes",
    }
)


def has_same_planned_fields(one: Node, other: Node) -> bool:
    """Return whether two Nodes differ at most in resourceVersion and fields from which no service plans.

    These fields are podCIDRs, readiness, and taints and annotations that no rule may set. No machine reports
    them. ipam and lifecycle read them from the watcher's messages.
    """
    if one is other:
        return True
    return is_same_object(_keep_planned_fields(one), _keep_planned_fields(other))


def _keep_planned_fields(node: Node) -> Node:
    metadata, spec, status = node.metadata, node.spec, node.status
    annotations = {
        key: text for key, text in metadata.annotations.items() if key not in UNPLANNED_ANNOTATIONS
    }
    taints = tuple(taint for taint in spec.taints if taint.key not in CONDITION_TAINTS)
    conditions = tuple(each for each in status.conditions if each.type == BLOCKED_CONDITION)
    return replace(
        node,
        metadata=replace(metadata, annotations=annotations),
        spec=replace(spec, pod_cidr="", pod_cidrs=(), taints=taints),
        status=replace(status, conditions=conditions),
    )
