"""Annotations of rules."""

from typing import Final

from libs.common.node import Node
from services.labeler.labels import names_in
from services.labeler.owned import Record
from services.labeler.rules.effects import RuleEffects
from services.labeler.whose_key import KeyChanges, Keys, decide

_OWNED_BY_TALOS: Final = "talos.dev/owned-annotations"  # JSON list of keys from machine.nodeAnnotations
NOTHING: Final = KeyChanges(changes={}, recorded={})


def annotation_changes(node: Node, record: Record, effects: RuleEffects) -> KeyChanges:
    """What differs from what the rules say, and is ours to change."""
    if not effects.annotations and not record.owned.annotations:
        return NOTHING
    adopted = record.state == "absent" and node.initialized  # the reference controller has set it
    return decide(
        Keys(
            kind="annotations",
            present=node.annotations,
            wanted=effects.annotations,
            recorded=record.owned.annotations,
            of_talos=names_in(node.annotations.get(_OWNED_BY_TALOS, "")),
            retained=frozenset(key for kind, key in effects.retained if kind == "annotation"),
            ours_if_equal=frozenset(effects.annotations) if adopted else frozenset(),
        )
    )
