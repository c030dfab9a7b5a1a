"""What the Node's metadata and taints should become, and the record of it: all of it in one patch."""

import msgspec

from libs.common.machine import MachineFacts
from libs.common.node import OWNED_RECORD, Node
from libs.common.patch import NodeChanges
from services.labeler.annotations import annotation_changes
from services.labeler.labels import LabelChanges, label_changes
from services.labeler.notices import Notice, of_record, of_theirs
from services.labeler.owned import Owned, Record, record_of, written
from services.labeler.provider_id_rule import given_by_rule
from services.labeler.rules.effects import RuleEffects
from services.labeler.taints import TaintChanges, taint_changes
from services.labeler.whose_key import KeyChanges


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
    found = _Found(
        label_changes(node, record, facts.platform, effects, cluster_name),
        annotation_changes(node, record, effects),
        taint_changes(node, record, effects),
    )
    owned = _owned(record, found, _by_rule(facts, effects, provider_id))
    changes = NodeChanges(
        labels=found.labels.changes,
        annotations=found.annotations.changes,
        held_annotations=(OWNED_RECORD,),  # a patch on an old view of it could set what nobody removes again
        provider_id=provider_id,
        set_taints=found.taints.set,
        remove_taints=found.taints.remove,
    )
    if _is_to_be_written(node, record, owned, changes):
        annotations = changes.annotations | {OWNED_RECORD: written(owned)}
        changes = msgspec.structs.replace(changes, annotations=annotations)
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
            return owned != record.owned
        case "unreadable":
            return True
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
