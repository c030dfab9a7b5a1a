"""Plans the taints of a Node: removes the uninitialized taint and sets those of rules.

The labeler sets the taints of rules before the scheduler may use the Node. It does not restore a taint that
was removed from an initialized Node, because the agent of a start-up taint removes the taint when it is done.
It withholds taints from a Node that was in use before its record began, until an operator opts in.
"""

from libs.common.contract.node import APPLY_TAINTS_ANNOTATION, UNINITIALIZED_TAINT, Node, Taint
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.blocker import block_on_machine_config_taint
from services.labeler.core.plan.field_ownership import KeyState, list_machine_config_keys, resolve_ownership
from services.labeler.core.plan.notices import build_conflict_notices, build_withheld_notices
from services.labeler.core.plan.ownership_record import ManagedFields, OwnershipRecord
from services.labeler.core.plan.plan import PlanInput, PlanPart


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
        changes = NodeChanges(annotations=_end_opt_in(node), remove_taints=uninitialized)
        return PlanPart(changes=changes, blocker=blocker)
    current = {_taint_key(taint): taint for taint in node.spec.taints}
    desired = {_taint_key(taint): taint for taint in effects.taints}
    found = resolve_ownership(_describe_taints(inputs, record, machine_config_keys))
    kept = {key: value for key, value in found.kept.items() if key in current}
    withheld = {key: value for key, value in found.kept.items() if key not in current}
    removed = (current[key] for key, value in found.changes.items() if value is None)
    return PlanPart(
        changes=NodeChanges(
            # While a rule with a withheld taint fails, the operator's request is not met yet.
            annotations={} if withheld else _end_opt_in(node),
            set_taints=tuple(desired[key] for key, value in found.changes.items() if value is not None),
            remove_taints=(*uninitialized, *removed),
        ),
        recorded=ManagedFields(
            taints=found.recorded, kept={"taints": kept} if kept else {}, withheld=withheld
        ),
        blocker=blocker,
        notices=(
            *build_conflict_notices(node.name, "taint", found.conflicts),
            *build_withheld_notices(node.name, withheld.keys() - record.managed_fields.withheld.keys()),
        ),
        machine_config_keys=found.machine_config_keys,
    )


def _describe_taints(
    inputs: PlanInput, record: OwnershipRecord, machine_config_keys: frozenset[str]
) -> KeyState:
    node, effects, recorded = inputs.node, inputs.effects, record.managed_fields.taints
    desired = {_taint_key(taint): taint.value for taint in effects.taints}
    retained_keys = {key for kind, key in effects.retained if kind == "taint"}
    adopted = record.state == "absent" and node.is_initialized
    withheld = frozenset(desired if adopted else record.managed_fields.withheld)
    released = _released_taints(node, record, desired)
    return KeyState(
        kind="taints",
        current={_taint_key(taint): taint.value for taint in node.spec.taints},
        desired=desired,
        recorded=recorded,
        machine_config_keys=machine_config_keys,
        retained=frozenset(key for key in recorded if key.rpartition(":")[0] in retained_keys),
        adopted_if_equal=frozenset(desired) if adopted else frozenset(),
        released=released - withheld if _is_opted_in(node) else released,
        withheld=withheld,
        kept={**record.managed_fields.kept.get("taints", {}), **record.managed_fields.withheld},
    )


def _released_taints(node: Node, record: OwnershipRecord, desired: dict[str, str]) -> frozenset[str]:
    """Return the taints that stay absent: pods already run on the Node without them."""
    if not node.is_initialized:
        return frozenset()
    return frozenset(record.managed_fields.taints) if record.state == "read" else frozenset(desired)


def _is_opted_in(node: Node) -> bool:
    return node.annotations.get(APPLY_TAINTS_ANNOTATION) == "true"


def _end_opt_in(node: Node) -> dict[str, str | None]:
    return {APPLY_TAINTS_ANNOTATION: None} if _is_opted_in(node) else {}


def _taint_key(taint: Taint) -> str:
    return f"{taint.key}:{taint.effect}"
