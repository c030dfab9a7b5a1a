"""What the workload expects of a cluster, and what an undisturbed run of it left. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from libs.common.contract.node import (
    BLOCKED_CONDITION,
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
)
from tests.chaos.history import Address, History, NodeState

# The record of the labeler's own keys, and what kube-controller-manager writes when it likes.
_NOT_COMPARED: Final = frozenset(
    {FIELD_OWNERSHIP_ANNOTATION, FIELD_OWNERSHIP_DIGEST_LABEL, "node.alpha.kubernetes.io/ttl"}
)


class Undisturbed(msgspec.Struct, frozen=True, kw_only=True):
    """What a run without faults left: the end state and first addresses of each Node, and its cost."""

    nodes: Mapping[str, Mapping[str, str]]  # by name of the Node: see `describe_end_state`
    first_addresses: Mapping[str, tuple[Address, ...]]  # when the uninitialized taint was removed
    requests_per_node: float


class OperatorKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator has written to a Node: no controller may change it."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    taints: tuple[Mapping[str, str], ...] = ()


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What one workload allows and requires, apart from the end states."""

    legitimate: frozenset[str] = frozenset()  # digests of requests that may be approved
    required: frozenset[str] = frozenset()  # digests of those that must be issued at the end
    untouched: frozenset[str] = frozenset()  # digests of requests for another signer
    operator_keys: Mapping[str, OperatorKeys] = {}  # by name of the Node
    deletable: frozenset[str] = frozenset()  # Nodes whose machine is provably gone
    moving: Mapping[str, frozenset[str]] = {}  # by name of the Node: addresses that may disappear


def describe_end_state(node: NodeState) -> dict[str, str]:
    """The fields of a Node that are the same at the end of every run of one workload, as texts."""
    fields = {
        "taints": sorted(f"{each['key']}={each.get('value', '')}:{each['effect']}" for each in node.taints),
        "addresses": [f"{kind} {address}" for kind, address in node.addresses],
        "provider_id": [node.provider_id],
        "pod_cidr_families": ["IPv6" if ":" in cidr else "IPv4" for cidr in node.pod_cidrs],
        "is_blocked": [str(BLOCKED_CONDITION in node.conditions)],
    }
    return {name: ", ".join(values) for name, values in fields.items()} | {
        f"{kind}[{key}]": value
        for kind, pairs in (("labels", node.labels), ("annotations", node.annotations))
        for key, value in pairs.items()
        if key not in _NOT_COMPARED
    }


def make_undisturbed(
    nodes: Iterable[NodeState], history: History, expected: Expectation, *, joined: int
) -> Undisturbed:
    """Record a run without faults in which `joined` Nodes have joined."""
    return Undisturbed(
        nodes={node.name: describe_end_state(node) for node in nodes if node.name not in expected.deletable},
        first_addresses={
            after.name: after.addresses
            for before, after in history.changes()
            if after.is_initialized and not before.is_initialized
        },
        requests_per_node=sum(history.request_counts.values()) / joined,
    )


def find_differences(
    nodes: Iterable[NodeState], undisturbed: Undisturbed, expected: Expectation
) -> list[str]:
    """How the present Nodes differ from the end of the undisturbed run, one text per difference."""
    present = {node.name: describe_end_state(node) for node in nodes}
    wanted = undisturbed.nodes
    missing = [
        f"Node {name} is missing" for name in sorted(wanted.keys() - present.keys() - expected.deletable)
    ]
    surplus = [
        f"Node {name} is left over" for name in sorted(present.keys() - wanted.keys() - expected.deletable)
    ]
    differing = [
        f"Node {name}: {field} is {present[name].get(field)!r}, undisturbed {wanted[name].get(field)!r}"
        for name in sorted(wanted.keys() & present.keys() - expected.deletable)
        for field in sorted(present[name].keys() | wanted[name].keys())
        if present[name].get(field) != wanted[name].get(field)
    ]
    return [*missing, *surplus, *differing]
