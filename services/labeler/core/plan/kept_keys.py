"""Finds the keys that the labeler would set on a Node but leaves unset, and describes how to change that."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from libs.common.contract.node import APPLY_TAINTS_ANNOTATION, FIELD_OWNERSHIP_ANNOTATION, Node
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.plan.field_ownership import read_taint_values
from services.labeler.core.plan.ownership_record import (
    FieldKind,
    Fingerprints,
    ManagedFields,
    decode_managed_fields,
    fingerprint_value,
    read_ownership_record,
)

KeyKind = Literal["label", "annotation", "taint"]
KIND_NAMES: Final[Mapping[FieldKind, KeyKind]] = {
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
    recorded: Mapping[FieldKind, Fingerprints] = {
        "labels": fields.machine | fields.labels,
        "annotations": fields.annotations,
        "taints": fields.taints,
    }
    return (*list_kept_keys(node, fields), *_list_different_keys(node, recorded))


def list_kept_keys(node: Node, fields: ManagedFields) -> tuple[KeptKey, ...]:
    """Return the kept keys and withheld taints that a record lists, as far as they still are."""
    if not fields.kept and not fields.withheld:  # of most Nodes, at each plan
        return ()
    taints = read_taint_values(node.spec.taints)
    withheld = (
        KeptKey(kind="taint", key=key, current=None, desired=desired)
        for key, desired in fields.withheld.items()
        if key not in taints
    )
    return (*_list_different_keys(node, fields.kept), *withheld)


def describe_hand_back(node_name: str, kind: KeyKind, key: str) -> str:
    """Return the command that gives a kept key back to the labeler, by decision 14."""
    command = f"kubectl {_VERBS[kind]} node {node_name} {key}-"
    if kind == "taint":  # the labeler restores no taint that was removed from a Node in use
        command += ", then remove it from the rule, and add it to the rule again"
    return command


def describe_taint_opt_in(node_name: str) -> str:
    """Return the command that lets the labeler set the withheld taints of a Node, once."""
    return f"kubectl annotate node {node_name} {APPLY_TAINTS_ANNOTATION}=true"


def _list_different_keys(
    node: Node, values: Mapping[FieldKind, Mapping[str, str | None]]
) -> Iterator[KeptKey]:
    """Yield the keys that the Node has with another value than the one of this fingerprint."""
    current: Mapping[FieldKind, Mapping[str, str]] = {
        "labels": node.labels,
        "annotations": node.annotations,
        "taints": read_taint_values(node.spec.taints),
    }
    for kind, present in current.items():
        for key, desired in values.get(kind, {}).items():
            if desired is not None and key in present and fingerprint_value(present[key]) != desired:
                yield KeptKey(kind=KIND_NAMES[kind], key=key, current=present[key], desired=desired)
