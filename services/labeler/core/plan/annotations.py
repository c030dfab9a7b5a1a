"""Plans the annotations that rules set."""

from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.plan.field_ownership import KeyState, list_machine_config_keys, resolve_ownership
from services.labeler.core.plan.notices import build_conflict_notices
from services.labeler.core.plan.ownership_record import ManagedFields, OwnershipRecord
from services.labeler.core.plan.plan import PlanInput, PlanPart


def plan_annotations(inputs: PlanInput, record: OwnershipRecord) -> PlanPart:
    """Plan the changes to the annotations that the labeler may change."""
    node, effects = inputs.node, inputs.effects
    if not effects.annotations and not record.managed_fields.annotations:
        return PlanPart()
    adopted = record.state == "absent" and node.is_initialized  # the reference controller has set equal ones
    found = resolve_ownership(
        KeyState(
            kind="annotations",
            current=node.annotations,
            desired=effects.annotations,
            recorded=record.managed_fields.annotations,
            kept=record.managed_fields.kept.get("annotations", {}),
            machine_config_keys=list_machine_config_keys(node, "annotations"),
            retained=frozenset(key for kind, key in effects.retained if kind == "annotation"),
            adopted_if_equal=frozenset(effects.annotations) if adopted else frozenset(),
        )
    )
    return PlanPart(
        changes=NodeChanges(annotations=found.changes),
        recorded=ManagedFields(
            annotations=found.recorded, kept={"annotations": found.kept} if found.kept else {}
        ),
        notices=build_conflict_notices(node.name, "annotation", found.conflicts),
        machine_config_keys=found.machine_config_keys,
    )
