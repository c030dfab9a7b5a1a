"""What the workload expects of a cluster, and what an undisturbed run of it left. Pure."""

from collections.abc import Iterable, Iterator, Mapping
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


class EndState(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a Node that are the same at the end of every run of one workload."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    taints: tuple[str, ...]
    addresses: tuple[Address, ...]
    provider_id: str
    pod_cidr_families: tuple[int, ...]
    is_blocked: bool


class Undisturbed(msgspec.Struct, frozen=True, kw_only=True):
    """What a run without faults left: the end state and first addresses of each Node, and its cost."""

    nodes: Mapping[str, EndState]
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


def make_end_state(node: NodeState) -> EndState:
    """The end state of a Node."""
    return EndState(
        labels=_compared(node.labels),
        annotations=_compared(node.annotations),
        taints=tuple(
            sorted(f"{taint['key']}={taint.get('value', '')}:{taint['effect']}" for taint in node.taints)
        ),
        addresses=node.addresses,
        provider_id=node.provider_id,
        pod_cidr_families=tuple(6 if ":" in cidr else 4 for cidr in node.pod_cidrs),
        is_blocked=BLOCKED_CONDITION in node.conditions,
    )


def _compared(pairs: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in sorted(pairs.items()) if key not in _NOT_COMPARED}


def make_undisturbed(
    nodes: Iterable[NodeState], history: History, expected: Expectation, *, joined: int
) -> Undisturbed:
    """Record a run without faults in which `joined` Nodes have joined."""
    return Undisturbed(
        nodes={node.name: make_end_state(node) for node in nodes if node.name not in expected.deletable},
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
    present = {node.name: make_end_state(node) for node in nodes}
    wanted = undisturbed.nodes
    missing = [
        f"Node {name} is missing" for name in sorted(wanted.keys() - present.keys() - expected.deletable)
    ]
    surplus = [
        f"Node {name} is left over" for name in sorted(present.keys() - wanted.keys() - expected.deletable)
    ]
    differing = [
        f"Node {name}: {difference}"
        for name in sorted(wanted.keys() & present.keys() - expected.deletable)
        for difference in _list_differences(present[name], wanted[name])
    ]
    return [*missing, *surplus, *differing]


def _list_differences(present: EndState, wanted: EndState) -> Iterator[str]:
    for field in EndState.__struct_fields__:
        ours, theirs = getattr(present, field), getattr(wanted, field)
        if isinstance(ours, Mapping):
            keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
            pairs = [(f"{field}[{key}]", ours.get(key), theirs.get(key)) for key in keys]
        else:
            pairs = [(field, ours, theirs)] if ours != theirs else []
        yield from (f"{where} is {one!r}, undisturbed {other!r}" for where, one, other in pairs)
