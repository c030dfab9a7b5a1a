"""Finds the keys that the labeler would set on a Node but leaves unset, and describes how to change that."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from libs.common.contract.node import APPLY_TAINTS_ANNOTATION, FIELD_OWNERSHIP_ANNOTATION, Node
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.plan.ownership_record import (
    FieldKind,
    ManagedFields,
    decode_managed_fields,
    fingerprint_value,
    read_ownership_record,
)

KeyKind = Literal["label", "annotation", "taint"]
_KINDS: Final[Mapping[FieldKind, KeyKind]] = {
    "labels": "label",
    "annotations": "annotation",
    "taints": "taint",
}
_VERBS: Final[Mapping[KeyKind, str]] = {"label": "label", "annotation": "annotate", "taint": "taint"}
_NO_CHANGES: Final = NodeChanges()


class KeptKey(msgspec.Struct, frozen=True, kw_only=True):
    """A label, annotation or taint to which the labeler does not give its value."""

    kind: KeyKind
    key: str  # of a taint: key:Effect
    current: str | None  # None: a withheld taint, which the Node lacks
    desired: str  # fingerprint of the labeler's value: the value itself, or the hash of a long one


def find_kept_keys(node: Node, changes: NodeChanges = _NO_CHANGES) -> tuple[KeptKey, ...]:
    """Return the kept keys and withheld taints of a Node on which the labeler's plan has these changes.

    Without a record in the changes, that of the Node counts. A key that has changed since the labeler wrote
    this record is kept, too.
    """
    text = changes.annotations.get(FIELD_OWNERSHIP_ANNOTATION)
    if text is not None:
        return list_kept_keys(node, decode_managed_fields(text))
    fields = read_ownership_record(node).managed_fields
    return (*list_kept_keys(node, fields), *_list_changed_keys(node, fields))


def list_kept_keys(node: Node, fields: ManagedFields) -> tuple[KeptKey, ...]:
    """Return the kept keys and withheld taints that a record lists, as far as they still are."""
    if not fields.kept and not fields.withheld:  # of most Nodes, at each plan
        return ()
    found = []
    for plural, current in _current_values(node).items():
        for key, desired in fields.kept.get(plural, {}).items():
            if key in current and fingerprint_value(current[key]) != desired:
                found.append(_make_kept_key(plural, key, current[key], desired))
    taints = _current_values(node)["taints"]
    found += [
        _make_kept_key("taints", key, None, desired)
        for key, desired in fields.withheld.items()
        if key not in taints
    ]
    return tuple(found)


def describe_hand_back(node_name: str, kind: KeyKind, key: str) -> str:
    """Return the command that gives a kept key back to the labeler, by decision 14."""
    command = f"kubectl {_VERBS[kind]} node {node_name} {key}-"
    if kind == "taint":  # the labeler restores no taint that was removed from a Node in use
        command += ", then remove it from the rule, and add it to the rule again"
    return command


def describe_taint_opt_in(node_name: str) -> str:
    """Return the command that lets the labeler set the withheld taints of a Node, once."""
    return f"kubectl annotate node {node_name} {APPLY_TAINTS_ANNOTATION}=true"


def _list_changed_keys(node: Node, fields: ManagedFields) -> Iterator[KeptKey]:
    recorded: Mapping[FieldKind, Mapping[str, str | None]] = {
        "labels": fields.machine | fields.labels,
        "annotations": fields.annotations,
        "taints": fields.taints,
    }
    for plural, current in _current_values(node).items():
        for key, fingerprint in recorded[plural].items():
            if (
                fingerprint is not None
                and fingerprint_value(current.get(key, "")) != fingerprint
                and key in current
            ):
                yield _make_kept_key(plural, key, current[key], fingerprint)


def _current_values(node: Node) -> Mapping[FieldKind, Mapping[str, str]]:
    taints = {f"{taint.key}:{taint.effect}": taint.value for taint in node.spec.taints}
    return {"labels": node.labels, "annotations": node.annotations, "taints": taints}


def _make_kept_key(plural: FieldKind, key: str, current: str | None, desired: str) -> KeptKey:
    return KeptKey(kind=_KINDS[plural], key=key, current=current, desired=desired)
