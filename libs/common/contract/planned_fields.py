"""The fields of a Node from which a consumer of enriched Nodes may plan, and those that never matter to it.

A change of the others alone needs no further enriched message and no further plan.
"""

from typing import Final

from msgspec.structs import replace

from libs.common.contract.node import BLOCKED_CONDITION, Node, is_same_node

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
_IGNORED_ANNOTATIONS: Final = frozenset(
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
    return is_same_node(_keep_planned_fields(one), _keep_planned_fields(other))


def _keep_planned_fields(node: Node) -> Node:
    metadata, spec, status = node.metadata, node.spec, node.status
    annotations = {key: text for key, text in metadata.annotations.items() if key not in _IGNORED_ANNOTATIONS}
    taints = tuple(taint for taint in spec.taints if taint.key not in CONDITION_TAINTS)
    conditions = tuple(each for each in status.conditions if each.type == BLOCKED_CONDITION)
    return replace(
        node,
        metadata=replace(metadata, annotations=annotations),
        spec=replace(spec, pod_cidr="", pod_cidrs=(), taints=taints),
        status=replace(status, conditions=conditions),
    )
