"""Plans the changes to labels, annotations, taints and the ownership record of a Node, for one patch."""

from typing import Final

import msgspec

from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, FIELD_OWNERSHIP_DIGEST_LABEL, Node
from libs.common.contract.node_patch import NodeChanges
from services.labeler.annotations import plan_annotations
from services.labeler.field_ownership import KeyChanges
from services.labeler.labels import LabelChanges, plan_labels
from services.labeler.notices import Notice, build_conflict_notices, build_record_notices
from services.labeler.ownership_record import (
    ManagedFields,
    OwnershipRecord,
    compute_digest,
    encode_managed_fields,
    read_ownership_record,
)
from services.labeler.provider_id_rule import is_set_by_rule
from services.labeler.rules.effects import RuleEffects
from services.labeler.taints import TaintChanges, plan_taints

_ASSUMED_RECORD: Final = OwnershipRecord("absent")


class MetadataChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The planned changes of the metadata, and the keys that the labeler leaves unchanged."""

    changes: NodeChanges
    notices: tuple[Notice, ...]
    invalid_labels: tuple[tuple[str, str], ...]  # built-in labels that Kubernetes would reject
    machine_config_keys: tuple[str, ...]  # keys that the machine config sets


class _KeyPlans(msgspec.Struct, frozen=True):
    """The decisions for the three kinds of keys."""

    labels: LabelChanges
    annotations: KeyChanges
    taints: TaintChanges


def plan_metadata_changes(
    node: Node, facts: MachineFacts, effects: RuleEffects, *, cluster_name: str, provider_id: str | None
) -> MetadataChanges:
    """Plan all changes to labels, annotations and taints; `provider_id` is the one to write, if any."""
    record = read_ownership_record(node)
    if record.state == "unreadable":
        record = _restore_record(
            record, node, _plan_keys(node, _ASSUMED_RECORD, facts, effects, cluster_name)
        )
    found = _plan_keys(node, record, facts, effects, cluster_name)
    owned = _build_managed_fields(record, found, _rule_provider_id(facts, effects, provider_id))
    changes = NodeChanges(
        labels=found.labels.changes,
        annotations=found.annotations.changes,
        guarded_labels=(
            FIELD_OWNERSHIP_DIGEST_LABEL,
        ),  # a patch on an old view of the record could set keys that are never recorded, nor removed
        guarded_annotations=(FIELD_OWNERSHIP_ANNOTATION,),
        provider_id=provider_id,
        set_taints=found.taints.set,
        remove_taints=found.taints.remove,
    )
    if _must_write_record(node, record, owned, changes):
        changes = _add_record(changes, encode_managed_fields(owned))
    return MetadataChanges(
        changes=changes,
        notices=_build_notices(record, found),
        invalid_labels=found.labels.invalid_labels,
        machine_config_keys=(
            *found.labels.machine_config_keys,
            *found.annotations.machine_config_keys,
            *found.taints.machine_config_keys,
        ),
    )


def _plan_keys(
    node: Node, record: OwnershipRecord, facts: MachineFacts, effects: RuleEffects, cluster_name: str
) -> _KeyPlans:
    return _KeyPlans(
        plan_labels(node, record, facts.platform, effects, cluster_name),
        plan_annotations(node, record, effects),
        plan_taints(node, record, effects),
    )


def _restore_record(record: OwnershipRecord, node: Node, assumed: _KeyPlans) -> OwnershipRecord:
    """Rebuild a destroyed record from the keys on the Node, if the result matches the digest in the label.

    Otherwise the keys may belong to any writer, and the new record contains only the providerID. Its origin
    is unknown; recording it keeps the Node ours.
    """
    for provider_id in ("", node.spec.provider_id):
        owned = _build_managed_fields(_ASSUMED_RECORD, assumed, provider_id)
        if compute_digest(encode_managed_fields(owned)) == node.labels.get(FIELD_OWNERSHIP_DIGEST_LABEL):
            return OwnershipRecord("read", owned, record.problem)
    return msgspec.structs.replace(record, managed_fields=ManagedFields(provider_id=node.spec.provider_id))


def _add_record(changes: NodeChanges, text: str) -> NodeChanges:
    return msgspec.structs.replace(
        changes,
        labels=changes.labels | {FIELD_OWNERSHIP_DIGEST_LABEL: compute_digest(text)},
        annotations=changes.annotations | {FIELD_OWNERSHIP_ANNOTATION: text},
    )


def _rule_provider_id(facts: MachineFacts, effects: RuleEffects, provider_id: str | None) -> str:
    """Return the providerID to write if a rule gives it, or ""."""
    return provider_id if provider_id and is_set_by_rule(facts, effects) else ""


def _build_managed_fields(record: OwnershipRecord, plans: _KeyPlans, provider_id: str) -> ManagedFields:
    return ManagedFields(
        version=1,
        machine=plans.labels.machine_record,
        labels=plans.labels.rule_record,
        annotations=plans.annotations.recorded,
        taints=plans.taints.recorded,
        provider_id=provider_id or record.managed_fields.provider_id,
    )


def _must_write_record(
    node: Node, record: OwnershipRecord, owned: ManagedFields, changes: NodeChanges
) -> bool:
    """Return whether the patch must contain the record.

    A Node that was initialized before records existed gets one with its first change or rule, because an
    upgrade must not write to every Node of a cluster.
    """
    match record.state:
        case "newer":
            return False
        case "read":
            return owned != record.managed_fields or bool(record.problem)
        case "unreadable":
            return True
    if record.problem:
        return True  # replace an annotation that is not a record and could be mistaken for one
    by_rules = owned.labels or owned.annotations or owned.taints
    return bool(not node.is_initialized or by_rules or _has_changes(changes))


def _has_changes(changes: NodeChanges) -> bool:
    return bool(
        changes.labels
        or changes.annotations
        or changes.provider_id
        or changes.set_taints
        or changes.remove_taints
    )


def _build_notices(record: OwnershipRecord, plans: _KeyPlans) -> tuple[Notice, ...]:
    return (
        *build_record_notices(record),
        *build_conflict_notices("label", plans.labels.conflicts),
        *build_conflict_notices("annotation", plans.annotations.conflicts),
        *build_conflict_notices("taint", plans.taints.conflicts),
    )
