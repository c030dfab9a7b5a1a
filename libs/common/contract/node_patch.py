"""Builds the smallest fenced patch from the current to the wanted state of a Node.

A `test` of its own key precedes each operation, and a `test` of the uid precedes all. So a patch that was
planned on an old state fails as a whole, instead of reverting another client's write (RFC 6902). Measured
on kube-apiserver 1.36: `test` against null passes if the key is absent and its parent exists.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from libs.common.contract.node import UNINITIALIZED_TAINT, Node, NodeAddress, NodeCondition, Taint

Operation = dict[str, Any]  # one RFC 6902 operation
StatusPatch = dict[str, Any]  # a strategic merge patch of nodes/status


class NodeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Wanted changes in metadata and spec; all other fields stay unchanged."""

    labels: dict[str, str | None] = {}  # None removes the key
    annotations: dict[str, str | None] = {}
    guarded_labels: tuple[str, ...] = ()  # the patch fails if one of these has changed meanwhile
    guarded_annotations: tuple[str, ...] = ()
    provider_id: str | None = None  # immutable once set: written only to a Node that has none
    pod_cidrs: tuple[str, ...] | None = None  # immutable once set
    set_taints: tuple[Taint, ...] = ()  # matched by key and effect; value replaced if it differs
    remove_taints: tuple[Taint, ...] = ()  # matched by key and effect


def build_node_patch(node: Node, changes: NodeChanges) -> list[Operation]:
    """Return the JSON Patch of the Node, empty if nothing changes.

    Order of taint operations: replace values in place, append new taints, then remove from the highest index
    down, so that no index moves before it is used.
    """
    operations = [
        *_map_operations("/metadata/labels", node.labels, changes.labels),
        *_map_operations("/metadata/annotations", node.annotations, changes.annotations),
        *_provider_id_operations(node, changes.provider_id),
        *_pod_cidr_operations(node, changes.pod_cidrs),
        *_taint_operations(node.spec.taints, changes.set_taints, changes.remove_taints),
    ]
    if not operations:
        return []
    return [
        _test("/metadata/uid", node.uid),
        *_held("/metadata/labels", node.labels, changes.guarded_labels),
        *_held("/metadata/annotations", node.annotations, changes.guarded_annotations),
        *_held_addresses(node, changes.remove_taints),
        *operations,
    ]


def _held(path: str, current: Mapping[str, str], keys: tuple[str, ...]) -> Iterable[Operation]:
    if not current:  # a test below a map that does not exist is an error
        return
    for key in keys:
        yield _test(f"{path}/{_escape(key)}", current.get(key))


def _held_addresses(node: Node, unwanted: tuple[Taint, ...]) -> Iterable[Operation]:
    # A restore of etcd between both writes may take the addresses back: no pod is scheduled then.
    if any(taint.key == UNINITIALIZED_TAINT for taint in unwanted):
        yield _test("/status/addresses", [_plain(each) for each in node.status.addresses] or None)


def _map_operations(
    path: str, current: Mapping[str, str], wanted: dict[str, str | None]
) -> Iterable[Operation]:
    changed = {key: value for key, value in sorted(wanted.items()) if current.get(key) != value}
    if not changed:
        return
    if not current:  # the API server omits an empty map: it must be added whole
        yield _test(path, None)
        yield {"op": "add", "path": path, "value": changed}
        return
    for key, value in changed.items():
        where = f"{path}/{_escape(key)}"
        yield _test(where, current.get(key))
        yield (
            {"op": "remove", "path": where} if value is None else {"op": "add", "path": where, "value": value}
        )


def _provider_id_operations(node: Node, wanted: str | None) -> Iterable[Operation]:
    if wanted is None or node.spec.provider_id:
        return
    yield _test("/spec/providerID", None)
    yield {"op": "add", "path": "/spec/providerID", "value": wanted}


def _pod_cidr_operations(node: Node, wanted: tuple[str, ...] | None) -> Iterable[Operation]:
    if not wanted or node.spec.pod_cidrs:
        return
    yield _test("/spec/podCIDRs", None)
    yield {"op": "add", "path": "/spec/podCIDR", "value": wanted[0]}
    yield {"op": "add", "path": "/spec/podCIDRs", "value": list(wanted)}


def _taint_operations(
    current: tuple[Taint, ...], wanted: tuple[Taint, ...], unwanted: tuple[Taint, ...]
) -> Iterable[Operation]:
    index = {(taint.key, taint.effect): i for i, taint in enumerate(current)}
    added: list[Taint] = []
    for taint in wanted:
        at = index.get((taint.key, taint.effect))
        if at is None:
            added.append(taint)
        elif current[at].value != taint.value:
            yield _test(f"/spec/taints/{at}", _plain(current[at]))
            yield {"op": "replace", "path": f"/spec/taints/{at}", "value": _plain(taint)}
    if added and not current:
        yield _test("/spec/taints", None)
        yield {"op": "add", "path": "/spec/taints", "value": [_plain(taint) for taint in added]}
    elif added:
        yield from ({"op": "add", "path": "/spec/taints/-", "value": _plain(taint)} for taint in added)
    doomed = {(taint.key, taint.effect) for taint in unwanted}
    for key_and_effect, at in sorted(index.items(), key=lambda item: -item[1]):
        if key_and_effect in doomed:
            yield _test(f"/spec/taints/{at}", _plain(current[at]))
            yield {"op": "remove", "path": f"/spec/taints/{at}"}


def build_status_patch(
    node: Node,
    *,
    addresses: tuple[NodeAddress, ...] | None = None,
    set_condition: NodeCondition | None = None,
    remove_condition: str = "",
    now: datetime,
) -> StatusPatch:
    """Return the strategic merge patch of the Node's status, empty if nothing changes.

    The uid fences it: for another Node of that name the API server returns 422. Addresses are replaced as a
    whole (`$patch: replace`), because their merge key, the type, is not unique in dual stack. `addresses`
    None leaves them unchanged.
    """
    status: dict[str, Any] = {}
    if addresses is not None and addresses != node.status.addresses:
        status["addresses"] = [*(_plain(address) for address in addresses), {"$patch": "replace"}]
    if set_condition is not None and _differs(node.find_condition(set_condition.type), set_condition):
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        status["conditions"] = [
            {
                "type": set_condition.type,
                "status": set_condition.status,
                "reason": set_condition.reason,
                "message": set_condition.message,
                "lastTransitionTime": stamp,
                "lastHeartbeatTime": stamp,
            }
        ]
    elif remove_condition and node.find_condition(remove_condition) is not None:
        status["conditions"] = [{"type": remove_condition, "$patch": "delete"}]
    return {"metadata": {"uid": node.uid}, "status": status} if status else {}


def _differs(current: NodeCondition | None, wanted: NodeCondition) -> bool:
    return current is None or msgspec.structs.replace(current, last_transition_time=None) != wanted


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value)


def _test(path: str, value: object) -> Operation:
    return {"op": "test", "path": path, "value": value}


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")  # RFC 6901
