"""Taints: the one that says that nobody has initialised the Node, and those of rules.

A rule's taint is there before anything can be scheduled. Once somebody has removed it from a Node that is in
use, it is not put back: the agent that a start-up taint waits for does just that.
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
    """What the taints should become, and what was left out of it."""

    set: tuple[Taint, ...] = ()
    remove: tuple[Taint, ...] = ()
    recorded: Fingerprints = {}
    conflicts: tuple[OwnershipConflict, ...] = ()
    machine_config_keys: tuple[str, ...] = ()


def plan_taints(node: Node, record: OwnershipRecord, effects: RuleEffects) -> TaintChanges:
    """What differs from what the rules say, and is ours to change; the uninitialized taint goes."""
    uninitialized = tuple(taint for taint in node.spec.taints if taint.key == UNINITIALIZED_TAINT)
    if not effects.taints and not record.managed_fields.taints:
        return TaintChanges(remove=uninitialized)
    present = {_taint_key(taint): taint for taint in node.spec.taints}
    wanted = {_taint_key(taint): taint for taint in effects.taints}
    found = _resolve_taints(node, record, effects, {key: taint.value for key, taint in present.items()})
    return TaintChanges(
        set=tuple(wanted[key] for key, value in found.changes.items() if value is not None),
        remove=(*uninitialized, *(present[key] for key, value in found.changes.items() if value is None)),
        recorded=found.recorded,
        conflicts=found.conflicts,
        machine_config_keys=found.machine_config_keys,
    )


def is_set_by_machine_config(node: Node) -> bool:
    """Whether the machine config itself sets the uninitialized taint: removing it would start a fight."""
    return UNINITIALIZED_TAINT in parse_owned_keys(node.annotations.get(_TALOS_OWNED_TAINTS, ""))


def _resolve_taints(
    node: Node, record: OwnershipRecord, effects: RuleEffects, present: dict[str, str]
) -> KeyChanges:
    wanted = {_taint_key(taint): taint.value for taint in effects.taints}
    unjudged = {key for kind, key in effects.retained if kind == "taint"}
    recorded = record.managed_fields.taints
    adopted = record.state == "absent" and node.is_initialized
    return resolve_ownership(
        KeyState(
            kind="taints",
            current=present,
            desired=wanted,
            recorded=recorded,
            machine_config_keys=parse_owned_keys(node.annotations.get(_TALOS_OWNED_TAINTS, "")),
            retained=frozenset(key for key in recorded if key.rpartition(":")[0] in unjudged),
            adopted_if_equal=frozenset(wanted) if adopted else frozenset(),
            released=_released_taints(node, record, wanted),
        )
    )


def _released_taints(node: Node, record: OwnershipRecord, wanted: dict[str, str]) -> frozenset[str]:
    """Taints that are not set where they are absent: what runs on the Node by now does so without them."""
    if not node.is_initialized:
        return frozenset()
    return frozenset(record.managed_fields.taints) if record.state == "read" else frozenset(wanted)


def _taint_key(taint: Taint) -> str:
    return f"{taint.key}:{taint.effect}"
