"""What the Node's metadata and taints should become, and the record of it: all of it in one patch."""

from typing import Final

import msgspec

from libs.common.machine import MachineFacts
from libs.common.node import OWNED_RECORD, RECORD_DIGEST, Node
from libs.common.patch import NodeChanges
from services.labeler.annotations import annotation_changes
from services.labeler.labels import LabelChanges, label_changes
from services.labeler.notices import Notice, of_record, of_theirs
from services.labeler.owned import Owned, Record, digest, record_of, written
from services.labeler.provider_id_rule import given_by_rule
from services.labeler.rules.effects import RuleEffects
from services.labeler.taints import TaintChanges, taint_changes
from services.labeler.whose_key import KeyChanges

_AS_IF_ALL_WERE_OURS: Final = Record("absent")


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """What is ours to change, and what is not."""

    changes: NodeChanges
    notices: tuple[Notice, ...]
    invalid: tuple[tuple[str, str], ...]  # built-in labels that Kubernetes would refuse
    left_to_talos: tuple[str, ...]  # keys that the machine config sets


class _Found(msgspec.Struct, frozen=True):
    """The decisions for the three kinds of keys."""

    labels: LabelChanges
    annotations: KeyChanges
    taints: TaintChanges


def claimed(
    node: Node, facts: MachineFacts, effects: RuleEffects, *, cluster_name: str, provider_id: str | None
) -> Claimed:
    """All changes to labels, annotations and taints; `provider_id` is what is to be written of it, if any."""
    record = record_of(node)
    if record.state == "unreadable":
        record = _restored(record, node, _found(node, _AS_IF_ALL_WERE_OURS, facts, effects, cluster_name))
    found = _found(node, record, facts, effects, cluster_name)
    owned = _owned(record, found, _by_rule(facts, effects, provider_id))
    changes = NodeChanges(
        labels=found.labels.changes,
        annotations=found.annotations.changes,
        held_labels=(RECORD_DIGEST,),  # a patch on an old view of the record could set what nobody removes
        held_annotations=(OWNED_RECORD,),
        provider_id=provider_id,
        set_taints=found.taints.set,
        remove_taints=found.taints.remove,
    )
    if _is_to_be_written(node, record, owned, changes):
        changes = _with_record(changes, written(owned))
    return Claimed(
        changes=changes,
        notices=_notices(record, found),
        invalid=found.labels.invalid,
        left_to_talos=(
            *found.labels.left_to_talos,
            *found.annotations.left_to_talos,
            *found.taints.left_to_talos,
        ),
    )


def _found(
    node: Node, record: Record, facts: MachineFacts, effects: RuleEffects, cluster_name: str
) -> _Found:
    return _Found(
        label_changes(node, record, facts.platform, effects, cluster_name),
        annotation_changes(node, record, effects),
        taint_changes(node, record, effects),
    )


def _restored(record: Record, node: Node, supposed: _Found) -> Record:
    """The record that somebody has destroyed, if what is on the Node makes the very one of the digest.

    Else what is on the Node may be anybody's. The providerID is recorded: nobody can tell whose idea it was,
    and the Node stays ours.
    """
    for provider_id in ("", node.spec.provider_id):
        owned = _owned(_AS_IF_ALL_WERE_OURS, supposed, provider_id)
        if digest(written(owned)) == node.labels.get(RECORD_DIGEST):
            return Record("read", owned, record.problem)
    return msgspec.structs.replace(record, owned=Owned(provider_id=node.spec.provider_id))


def _with_record(changes: NodeChanges, text: str) -> NodeChanges:
    return msgspec.structs.replace(
        changes,
        labels=changes.labels | {RECORD_DIGEST: digest(text)},
        annotations=changes.annotations | {OWNED_RECORD: text},
    )


def _by_rule(facts: MachineFacts, effects: RuleEffects, provider_id: str | None) -> str:
    """The providerID that is to be written, if it is a rule's."""
    return provider_id if provider_id and given_by_rule(facts, effects) else ""


def _owned(record: Record, found: _Found, provider_id: str) -> Owned:
    return Owned(
        version=1,
        machine=found.labels.machine,
        labels=found.labels.by_rules,
        annotations=found.annotations.recorded,
        taints=found.taints.recorded,
        provider_id=provider_id or record.owned.provider_id,
    )


def _is_to_be_written(node: Node, record: Record, owned: Owned, changes: NodeChanges) -> bool:
    """Whether the record belongs into the patch.

    A Node that was initialised before there were records gets one with the first change or rule: an upgrade
    must not write to every Node of a cluster.
    """
    match record.state:
        case "newer":
            return False
        case "read":
            return owned != record.owned or bool(record.problem)
        case "unreadable":
            return True
    if record.problem:
        return True  # what stands there is no record, and is not to be taken for one
    by_rules = owned.labels or owned.annotations or owned.taints
    return bool(not node.initialized or by_rules or _changes_anything(changes))


def _changes_anything(changes: NodeChanges) -> bool:
    return bool(
        changes.labels
        or changes.annotations
        or changes.provider_id
        or changes.set_taints
        or changes.remove_taints
    )


def _notices(record: Record, found: _Found) -> tuple[Notice, ...]:
    return (
        *of_record(record),
        *of_theirs("label", found.labels.theirs),
        *of_theirs("annotation", found.annotations.theirs),
        *of_theirs("taint", found.taints.theirs),
    )
