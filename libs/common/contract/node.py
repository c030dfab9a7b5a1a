"""The part of a Kubernetes Node that we read, in Kubernetes' own shape and names (core/v1)."""

from datetime import datetime

import msgspec

# Written by a kubelet with --cloud-provider=external.
PROVIDED_NODE_IP_ANNOTATION = "alpha.kubernetes.io/provided-node-ip"
UNINITIALIZED_TAINT = "node.cloudprovider.kubernetes.io/uninitialized"
# NodeRestriction keeps kubelets from writing labels of this prefix.
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
# What the labeler has set on the Node, and so may change and remove.
FIELD_OWNERSHIP_ANNOTATION = "node.cloudprovider.kubernetes.io/talos-ccm-owned"
# Label with a digest of it. A kubelet may write annotations of its Node, but no label of this prefix.
FIELD_OWNERSHIP_DIGEST_LABEL = "talos-ccm.node-restriction.kubernetes.io/record"
_RESTRICTED_PREFIX = "node-restriction.kubernetes.io"
BLOCKED_CONDITION = "TalosInitializationBlocked"  # ours, negative polarity: absent on nodes that never failed

ANNOTATION_VALUE_LIMIT = 1024  # characters; longer ones are other people's state and no rule reads them
# Lists of keys, as long as the machine config or our rules are; whoever writes must know them.
_READ_AT_ANY_LENGTH = ("talos.dev/owned-", FIELD_OWNERSHIP_ANNOTATION)
_IGNORED_ANNOTATIONS = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        # How long a kubelet may cache secrets: the ttl controller writes it when a node joins, and on every
        # node whenever the cluster outgrows 100, 500, 1000 or 2000 of them.
        "node.alpha.kubernetes.io/ttl",
    }
)
_CONDITIONS_READ = frozenset({"Ready", BLOCKED_CONDITION})


class ObjectMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """metadata of an object, as far as we read it."""

    name: str
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Taint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One element of spec.taints; `time_added` stays text, because a JSON Patch `test` compares it."""

    key: str
    value: str = ""
    effect: str
    time_added: str = ""


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """spec of a Node, as far as we read it."""

    provider_id: str = msgspec.field(name="providerID", default="")
    pod_cidr: str = msgspec.field(name="podCIDR", default="")
    pod_cidrs: tuple[str, ...] = msgspec.field(name="podCIDRs", default=())
    taints: tuple[Taint, ...] = ()


class NodeAddress(msgspec.Struct, frozen=True, kw_only=True):
    """One element of status.addresses; `type` as in core/v1 NodeAddressType (InternalIP, Hostname, ...)."""

    type: str
    address: str


class NodeCondition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One element of status.conditions; heartbeats are not read: they would be news all the time.

    `last_transition_time` stays text: kubelets write it, Kubernetes takes the years 0 and 10000 as well, and
    a Node that could not be read for it would stop all who list Nodes.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class NodeSystemInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """status.nodeInfo, as far as we read it; the kubelet writes it."""

    system_uuid: str = msgspec.field(name="systemUUID", default="")


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """status of a Node, as far as we read it."""

    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Node as the API server encodes it; decodes straight from a list, a watch or a patch reply."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def resource_version_number(self) -> int:
        """`parse_resource_version` of its resourceVersion."""
        return parse_resource_version(self.metadata.resource_version)

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations

    @property
    def provided_node_ip(self) -> str:
        """Text of the kubelet's annotation, unparsed; "" when the kubelet is not external."""
        return self.metadata.annotations.get(PROVIDED_NODE_IP_ANNOTATION, "")

    @property
    def is_initialized(self) -> bool:
        """Whether no uninitialized taint (of any effect) is left."""
        return all(taint.key != UNINITIALIZED_TAINT for taint in self.spec.taints)

    def find_condition(self, kind: str) -> NodeCondition | None:
        """The condition of that type, None when it is absent."""
        return next((c for c in self.status.conditions if c.type == kind), None)


def is_restricted_label(key: str) -> bool:
    """Whether NodeRestriction, an admission plugin of Kubernetes, keeps kubelets from writing this label.

    The prefix is `node-restriction.kubernetes.io/` or ends in `.node-restriction.kubernetes.io/`.
    """
    prefix, slash, _ = key.partition("/")
    return bool(slash) and f".{prefix}".endswith(f".{_RESTRICTED_PREFIX}")


def parse_resource_version(resource_version: str) -> int:
    """A resourceVersion as the integer that it is since KEP-5504, greater is newer; 0 for anything else."""
    return int(resource_version) if resource_version.isascii() and resource_version.isdigit() else 0


def trim_node(node: Node) -> Node:
    """The node as it is published: other people's conditions and oversized annotations left out.

    Heartbeats change none of it, so `same_to_us` of two such nodes decides whether there is news.
    """
    metadata = node.metadata
    annotations = {
        key: value
        for key, value in metadata.annotations.items()
        if (len(value) <= ANNOTATION_VALUE_LIMIT or key.startswith(_READ_AT_ANY_LENGTH))
        and key not in _IGNORED_ANNOTATIONS
    }
    conditions = tuple(c for c in node.status.conditions if c.type in _CONDITIONS_READ)
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(metadata, annotations=annotations),
        status=msgspec.structs.replace(node.status, conditions=conditions),
    )


def is_same_node(one: Node, other: Node) -> bool:
    """Whether two published nodes differ in nothing but their resourceVersion."""
    return _without_version(one) == _without_version(other)


def _without_version(node: Node) -> Node:
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, resource_version=""))
