"""Plans the taints of a Node: removes the uninitialized taint and sets those of rules.

The labeler sets the taints of rules before the scheduler may use the Node. It does not restore a taint that
was removed from an initialized Node, because the agent of a start-up taint removes the taint when it is done.
"""

from libs.common.contract.node import UNINITIALIZED_TAINT, Node, Taint
from libs.common.contract.node_patch import NodeChanges
from services.labeler.blocker import block_on_machine_config_taint
from services.labeler.plan.field_ownership import KeyState, list_machine_config_keys, resolve_ownership
from services.labeler.plan.notices import build_conflict_notices
from services.labeler.plan.ownership_record import ManagedFields, OwnershipRecord
from services.labeler.plan.plan import PlanInput, PlanPart


def plan_taints(inputs: PlanInput, record: OwnershipRecord) -> PlanPart:
    """Plan the changes to the taints that the labeler may change; always remove the uninitialized taint.

    Blocked while the machine config sets the uninitialized taint, because Talos would restore it.
    """
    node, effects = inputs.node, inputs.effects
    machine_config_keys = list_machine_config_keys(node, "taints")
    is_set_by_talos = not node.is_initialized and UNINITIALIZED_TAINT in machine_config_keys
    blocker = block_on_machine_config_taint() if is_set_by_talos else None
    uninitialized = tuple(taint for taint in node.spec.taints if taint.key == UNINITIALIZED_TAINT)
    if not effects.taints and not record.managed_fields.taints:
        return PlanPart(changes=NodeChanges(remove_taints=uninitialized), blocker=blocker)
    current = {_taint_key(taint): taint for taint in node.spec.taints}
    desired = {_taint_key(taint): taint for taint in effects.taints}
    found = resolve_ownership(_describe_taints(inputs, record, machine_config_keys))
    removed = (current[key] for key, value in found.changes.items() if value is None)
    return PlanPart(
        changes=NodeChanges(
            set_taints=tuple(desired[key] for key, value in found.changes.items() if value is not None),
            remove_taints=(*uninitialized, *removed),
        ),
        recorded=ManagedFields(taints=found.recorded),
        blocker=blocker,
        notices=build_conflict_notices("taint", found.conflicts),
        machine_config_keys=found.machine_config_keys,
    )


def _describe_taints(
    inputs: PlanInput, record: OwnershipRecord, machine_config_keys: frozenset[str]
) -> KeyState:
    node, effects, recorded = inputs.node, inputs.effects, record.managed_fields.taints
    desired = {_taint_key(taint): taint.value for taint in effects.taints}
    retained_keys = {key for kind, key in effects.retained if kind == "taint"}
    adopted = record.state == "absent" and node.is_initialized
    return KeyState(
        kind="taints",
        current={_taint_key(taint): taint.value for taint in node.spec.taints},
        desired=desired,
        recorded=recorded,
        machine_config_keys=machine_config_keys,
        retained=frozenset(key for key in recorded if key.rpartition(":")[0] in retained_keys),
        adopted_if_equal=frozenset(desired) if adopted else frozenset(),
        released=_released_taints(node, record, desired),
    )


def _released_taints(node: Node, record: OwnershipRecord, desired: dict[str, str]) -> frozenset[str]:
    """Return the taints that stay absent: pods already run on the Node without them."""
    if not node.is_initialized:
        return frozenset()
    return frozenset(record.managed_fields.taints) if record.state == "read" else frozenset(desired)


def _taint_key(taint: Taint) -> str:
    return f"{taint.key}:{taint.effect}"
