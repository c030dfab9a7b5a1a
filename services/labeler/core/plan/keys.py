"""Plans the labels, annotations and taints of a Node: those of its machine and those of rules.

The labeler sets the taints of rules before the scheduler may use the Node. It does not restore a taint that
was removed from an initialized Node, because the agent of a start-up taint removes the taint when it is done.
It withholds taints from a Node that was in use before its record began, until an operator opts in.
"""

from collections.abc import Iterator

from libs.common.contract.node import APPLY_TAINTS_ANNOTATION, UNINITIALIZED_TAINT, Node
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.blocker import block
from services.labeler.core.notice import Notice
from services.labeler.core.plan.field_ownership import (
    NO_CHANGES,
    KeyChanges,
    KeyState,
    list_machine_config_keys,
    read_taint_values,
    resolve_ownership,
    taint_key,
)
from services.labeler.core.plan.labels import describe_labels
from services.labeler.core.plan.notices import (
    build_conflict_notices,
    build_invalid_label_notices,
    build_withheld_notices,
)
from services.labeler.core.plan.ownership_record import (
    RECORD_VERSION,
    FieldKind,
    ManagedFields,
    OwnershipRecord,
)
from services.labeler.core.plan.plan import PlanInput, PlanPart


def plan_keys(inputs: PlanInput, record: OwnershipRecord) -> PlanPart:
    """Plan the changes to the keys that the labeler may change; always remove the uninitialized taint.

    Blocked while the machine config sets the uninitialized taint, because Talos would restore it.
    """
    node, effects, managed = inputs.node, inputs.effects, record.managed_fields
    labels = describe_labels(inputs, record)
    found: dict[FieldKind, KeyChanges] = {
        "labels": resolve_ownership(labels.keys),
        "annotations": NO_CHANGES,
        "taints": NO_CHANGES,
    }
    if effects.annotations or managed.annotations:
        found["annotations"] = resolve_ownership(_describe_annotations(inputs, record))
    if effects.taints or managed.taints:
        found["taints"] = resolve_ownership(_describe_taints(inputs, record))
    taints, withheld = found["taints"].changes, found["taints"].withheld
    is_set_by_talos = not node.is_initialized and UNINITIALIZED_TAINT in list_machine_config_keys(
        node, "taints"
    )
    return PlanPart(
        changes=NodeChanges(
            labels=found["labels"].changes,
            # While a rule with a withheld taint fails, the operator's request is not met yet.
            annotations=found["annotations"].changes | ({} if withheld else _end_opt_in(node)),
            set_taints=tuple(each for each in effects.taints if taints.get(taint_key(each)) is not None),
            remove_taints=tuple(
                each
                for each in node.spec.taints
                if each.key == UNINITIALIZED_TAINT or taints.get(taint_key(each), "") is None
            ),
        ),
        recorded=_record_keys(found, labels.machine),
        blocker=block("TaintSetByMachineConfig") if is_set_by_talos else None,
        notices=tuple(_list_notices(node, found, labels.invalid, managed.withheld)),
        machine_config_keys=tuple(key for keys in found.values() for key in keys.machine_config_keys),
    )


def _record_keys(found: dict[FieldKind, KeyChanges], machine: frozenset[str]) -> ManagedFields:
    labels = found["labels"].recorded
    return ManagedFields(
        version=RECORD_VERSION,
        machine={key: value for key, value in labels.items() if key in machine},
        labels={key: value for key, value in labels.items() if key not in machine},
        annotations=found["annotations"].recorded,
        taints=found["taints"].recorded,
        kept={kind: keys.kept for kind, keys in found.items() if keys.kept},
        withheld=found["taints"].withheld,
    )


def _list_notices(
    node: Node, found: dict[FieldKind, KeyChanges], invalid: dict[str, str], known: dict[str, str]
) -> Iterator[Notice]:
    for kind, keys in found.items():
        if keys.conflicts:
            yield from build_conflict_notices(node.name, kind, keys.conflicts)
    yield from build_invalid_label_notices(invalid)
    if withheld := found["taints"].withheld.keys() - known.keys():
        yield from build_withheld_notices(node.name, withheld)


def _describe_annotations(inputs: PlanInput, record: OwnershipRecord) -> KeyState:
    node, desired = inputs.node, inputs.effects.annotations
    return KeyState(
        kind="annotations",
        current=node.annotations,
        desired=desired,
        recorded=record.managed_fields.annotations,
        kept=record.managed_fields.kept.get("annotations", {}),
        machine_config_keys=list_machine_config_keys(node, "annotations"),
        retained=frozenset(key for kind, key in inputs.effects.retained if kind == "annotation"),
        adopted_if_equal=frozenset(desired) if _comes_from_reference(node, record) else frozenset(),
    )


def _describe_taints(inputs: PlanInput, record: OwnershipRecord) -> KeyState:
    node, effects, managed = inputs.node, inputs.effects, record.managed_fields
    desired = read_taint_values(effects.taints)
    retained_keys = {key for kind, key in effects.retained if kind == "taint"}
    adopted = frozenset(desired) if _comes_from_reference(node, record) else frozenset[str]()
    withheld = adopted or frozenset(managed.withheld)
    released = _released_taints(node, record, desired)
    return KeyState(
        kind="taints",
        current=read_taint_values(node.spec.taints),
        desired=desired,
        recorded=managed.taints,
        machine_config_keys=list_machine_config_keys(node, "taints"),
        retained=frozenset(key for key in managed.taints if key.rpartition(":")[0] in retained_keys),
        adopted_if_equal=adopted,
        released=released - withheld if _is_opted_in(node) else released,
        withheld=withheld,
        kept={**managed.kept.get("taints", {}), **managed.withheld},
    )


def _comes_from_reference(node: Node, record: OwnershipRecord) -> bool:
    """Return whether the reference controller may have set equal annotations and taints on the Node."""
    return record.state == "absent" and node.is_initialized


def _released_taints(node: Node, record: OwnershipRecord, desired: dict[str, str]) -> frozenset[str]:
    """Return the taints that stay absent: pods already run on the Node without them."""
    if not node.is_initialized:
        return frozenset()
    return frozenset(record.managed_fields.taints) if record.state == "read" else frozenset(desired)


def _is_opted_in(node: Node) -> bool:
    return node.annotations.get(APPLY_TAINTS_ANNOTATION) == "true"


def _end_opt_in(node: Node) -> dict[str, str | None]:
    return {APPLY_TAINTS_ANNOTATION: None} if _is_opted_in(node) else {}
