"""Plans the taints of a Node: removes the uninitialized taint and sets those of rules.

The labeler sets the taints of rules before the scheduler may use the Node. It does not restore a taint that
was removed from an initialized Node, because the agent of a start-up taint removes the taint when it is done.
"""

from typing import Final

import msgspec

from libs.common.contract.node import UNINITIALIZED_TAINT, Node, Taint
from services.labeler.field_ownership import KeyChanges, KeyState, OwnershipConflict, resolve_ownership
from services.labeler.labels import parse_owned_keys
from services.labeler.ownership_record import Fingerprints, OwnershipRecord
from services.labeler.rules.effects import RuleEffects

_TALOS_OWNED_TAINTS: Final = "talos.dev/owned-taints"  # JSON list of keys from machine.nodeTaints


class TaintChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to the taints, their entries in the record, and the taints that stay unchanged."""

    set: tuple[Taint, ...] = ()
    remove: tuple[Taint, ...] = ()
    recorded: Fingerprints = {}
    conflicts: tuple[OwnershipConflict, ...] = ()
    machine_config_keys: tuple[str, ...] = ()


def plan_taints(node: Node, record: OwnershipRecord, effects: RuleEffects) -> TaintChanges:
    """Plan the changes to the taints that the labeler may change; always remove the uninitialized taint."""
    uninitialized = tuple(taint for taint in node.spec.taints if taint.key == UNINITIALIZED_TAINT)
    if not effects.taints and not record.managed_fields.taints:
        return TaintChanges(remove=uninitialized)
    current = {_taint_key(taint): taint for taint in node.spec.taints}
    desired = {_taint_key(taint): taint for taint in effects.taints}
    found = _resolve_taints(node, record, effects, {key: taint.value for key, taint in current.items()})
    return TaintChanges(
        set=tuple(desired[key] for key, value in found.changes.items() if value is not None),
        remove=(*uninitialized, *(current[key] for key, value in found.changes.items() if value is None)),
        recorded=found.recorded,
        conflicts=found.conflicts,
        machine_config_keys=found.machine_config_keys,
    )


def is_set_by_machine_config(node: Node) -> bool:
    """Return whether the machine config sets the uninitialized taint, so that Talos would restore it."""
    return UNINITIALIZED_TAINT in parse_owned_keys(node.annotations.get(_TALOS_OWNED_TAINTS, ""))


def _resolve_taints(
    node: Node, record: OwnershipRecord, effects: RuleEffects, current: dict[str, str]
) -> KeyChanges:
    desired = {_taint_key(taint): taint.value for taint in effects.taints}
    retained_keys = {key for kind, key in effects.retained if kind == "taint"}
    recorded = record.managed_fields.taints
    adopted = record.state == "absent" and node.is_initialized
    return resolve_ownership(
        KeyState(
            kind="taints",
            current=current,
            desired=desired,
            recorded=recorded,
            machine_config_keys=parse_owned_keys(node.annotations.get(_TALOS_OWNED_TAINTS, "")),
            retained=frozenset(key for key in recorded if key.rpartition(":")[0] in retained_keys),
            adopted_if_equal=frozenset(desired) if adopted else frozenset(),
            released=_released_taints(node, record, desired),
        )
    )


def _released_taints(node: Node, record: OwnershipRecord, desired: dict[str, str]) -> frozenset[str]:
    """Return the taints that stay absent: pods already run on the Node without them."""
    if not node.is_initialized:
        return frozenset()
    return frozenset(record.managed_fields.taints) if record.state == "read" else frozenset(desired)


def _taint_key(taint: Taint) -> str:
    return f"{taint.key}:{taint.effect}"
