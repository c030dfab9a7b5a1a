"""Plans the annotations that rules set."""

from typing import Final

from libs.common.contract.node import Node
from services.labeler.field_ownership import KeyChanges, KeyState, resolve_ownership
from services.labeler.labels import parse_owned_keys
from services.labeler.ownership_record import OwnershipRecord
from services.labeler.rules.effects import RuleEffects

_OWNED_BY_TALOS: Final = "talos.dev/owned-annotations"  # JSON list of keys from machine.nodeAnnotations
NO_CHANGES: Final = KeyChanges(changes={}, recorded={})


def plan_annotations(node: Node, record: OwnershipRecord, effects: RuleEffects) -> KeyChanges:
    """Plan the changes to the annotations that the labeler may change."""
    if not effects.annotations and not record.managed_fields.annotations:
        return NO_CHANGES
    adopted = record.state == "absent" and node.is_initialized  # the reference controller has set equal ones
    return resolve_ownership(
        KeyState(
            kind="annotations",
            current=node.annotations,
            desired=effects.annotations,
            recorded=record.managed_fields.annotations,
            machine_config_keys=parse_owned_keys(node.annotations.get(_OWNED_BY_TALOS, "")),
            retained=frozenset(key for kind, key in effects.retained if kind == "annotation"),
            adopted_if_equal=frozenset(effects.annotations) if adopted else frozenset(),
        )
    )
