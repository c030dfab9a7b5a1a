"""Taints: the one that says that nobody has initialised the Node, and those of rules.

A rule's taint is there before anything can be scheduled. Once somebody has removed it from a Node that is in
use, it is not put back: the agent that a start-up taint waits for does just that.
"""

from typing import Final

import msgspec

from libs.common.node import TAINT_UNINITIALIZED, Node, Taint
from services.labeler.labels import names_in
from services.labeler.owned import Marks, Record
from services.labeler.rules.effects import RuleEffects
from services.labeler.whose_key import KeyChanges, Keys, Theirs, decide

_OWNED_BY_TALOS: Final = "talos.dev/owned-taints"  # JSON list of keys from machine.nodeTaints


class TaintChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What the taints should become, and what was left out of it."""

    set: tuple[Taint, ...] = ()
    remove: tuple[Taint, ...] = ()
    recorded: Marks = {}
    theirs: tuple[Theirs, ...] = ()
    left_to_talos: tuple[str, ...] = ()


def taint_changes(node: Node, record: Record, effects: RuleEffects) -> TaintChanges:
    """What differs from what the rules say, and is ours to change; the uninitialized taint goes."""
    uninitialized = tuple(taint for taint in node.spec.taints if taint.key == TAINT_UNINITIALIZED)
    if not effects.taints and not record.owned.taints:
        return TaintChanges(remove=uninitialized)
    present = {_identity(taint): taint for taint in node.spec.taints}
    wanted = {_identity(taint): taint for taint in effects.taints}
    found = _decided(node, record, effects, {key: taint.value for key, taint in present.items()})
    return TaintChanges(
        set=tuple(wanted[key] for key, value in found.changes.items() if value is not None),
        remove=(*uninitialized, *(present[key] for key, value in found.changes.items() if value is None)),
        recorded=found.recorded,
        theirs=found.theirs,
        left_to_talos=found.left_to_talos,
    )


def put_back_by_talos(node: Node) -> bool:
    """Whether the machine config itself sets the uninitialized taint: removing it would start a fight."""
    return TAINT_UNINITIALIZED in names_in(node.annotations.get(_OWNED_BY_TALOS, ""))


def _decided(node: Node, record: Record, effects: RuleEffects, present: dict[str, str]) -> KeyChanges:
    wanted = {_identity(taint): taint.value for taint in effects.taints}
    unjudged = {key for kind, key in effects.retained if kind == "taint"}
    recorded = record.owned.taints
    adopted = record.state == "absent" and node.initialized
    return decide(
        Keys(
            kind="taints",
            present=present,
            wanted=wanted,
            recorded=recorded,
            of_talos=names_in(node.annotations.get(_OWNED_BY_TALOS, "")),
            retained=frozenset(key for key in recorded if key.rpartition(":")[0] in unjudged),
            ours_if_equal=frozenset(wanted) if adopted else frozenset(),
            released=_released(node, record, wanted),
        )
    )


def _released(node: Node, record: Record, wanted: dict[str, str]) -> frozenset[str]:
    """Taints that are not set where they are absent: what runs on the Node by now does so without them."""
    if not node.initialized:
        return frozenset()
    return frozenset(record.owned.taints) if record.state == "read" else frozenset(wanted)


def _identity(taint: Taint) -> str:
    return f"{taint.key}:{taint.effect}"
