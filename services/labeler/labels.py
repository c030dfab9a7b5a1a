"""Labels: the built-in ones, told by the machine, and those of rules, right for as long as the Node lives."""

import re
from typing import Final

import msgspec

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import Node
from services.labeler.field_ownership import KeyState, OwnershipConflict, resolve_ownership
from services.labeler.ownership_record import Fingerprints, OwnershipRecord
from services.labeler.rules.effects import RetainedKind, RuleEffects

PLATFORM: Final = "node.cloudprovider.kubernetes.io/platform"
LIFECYCLE: Final = "node.cloudprovider.kubernetes.io/lifecycle"
CLUSTER_NAME: Final = "node.cloudprovider.kubernetes.io/clustername"
INSTANCE_TYPE: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
ZONE: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
REGION: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")

_NONE: Final[frozenset[str]] = frozenset()
_SPOT: Final = "spot"
_TALOS_OWNED_LABELS: Final = "talos.dev/owned-labels"  # JSON list; Talos rewrites these keys for ever
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


_LABELS_BY_FIELD: Final = {
    "zone": ZONE,
    "region": REGION,
    "instance_type": INSTANCE_TYPE,
    "spot": (LIFECYCLE,),
}
BUILT_IN: Final = frozenset({PLATFORM, LIFECYCLE, CLUSTER_NAME, *INSTANCE_TYPE, *ZONE, *REGION})


class LabelChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What the labels should become, and what was left out of it."""

    changes: dict[str, str | None]  # None removes the key
    machine_record: Fingerprints  # of the record: labels that say what the machine says
    rule_record: Fingerprints
    invalid_labels: tuple[tuple[str, str], ...] = ()  # (key, value) that Kubernetes would refuse
    conflicts: tuple[OwnershipConflict, ...] = ()
    machine_config_keys: tuple[str, ...] = ()  # keys from the machine config whose value we would change


def plan_labels(
    node: Node, record: OwnershipRecord, reported: PlatformMetadata, effects: RuleEffects, cluster_name: str
) -> LabelChanges:
    """What differs from what the machine (`said`) and the rules say, and is ours to change.

    What Talos stops reporting stays as it is (Kubernetes issue 141631): a flickering metadata service must
    not move a node out of its zone. Only the lifecycle is a statement by its absence.
    """
    by_machine = _built_in_labels(reported, cluster_name)
    wanted = _built_in_labels(effects.platform, cluster_name) | effects.labels
    invalid = _find_invalid_labels(node, wanted, effects)
    for key, _ in invalid:
        del wanted[key]
    of_machine = {key for key, value in wanted.items() if by_machine.get(key) == value}
    unsaid = record.managed_fields.machine.keys() - wanted.keys() - by_machine.keys() - {LIFECYCLE}
    retained = _retained_labels(effects.retained).union(unsaid, (key for key, _ in invalid))
    found = resolve_ownership(
        KeyState(
            kind="labels",
            current=node.labels,
            desired=wanted,
            recorded=_recorded_labels(node, record),
            machine_config_keys=parse_owned_keys(node.annotations.get(_TALOS_OWNED_LABELS, "")),
            retained=retained,
            adopted_if_equal=_adopted_if_equal(node, record, wanted, of_machine),
            adopted_if_different=_adopted_if_different(node, record, of_machine),
        )
    )
    machine = (of_machine - (retained & record.managed_fields.labels.keys())) | (
        retained & record.managed_fields.machine.keys()
    )
    return LabelChanges(
        changes=found.changes,
        machine_record={key: value for key, value in found.recorded.items() if key in machine},
        rule_record={key: value for key, value in found.recorded.items() if key not in machine},
        invalid_labels=invalid,
        conflicts=found.conflicts,
        machine_config_keys=found.machine_config_keys,
    )


def is_label_value(value: str) -> bool:
    """Whether Kubernetes takes a non-empty text as a label's value."""
    return _LABEL_VALUE.fullmatch(value) is not None


def parse_owned_keys(annotation: str) -> frozenset[str]:
    """A `talos.dev/owned-*` annotation's JSON list of keys; empty when it is none."""
    if not annotation:
        return _NONE
    try:
        return frozenset(msgspec.json.decode(annotation, type=list[str]))
    except (msgspec.DecodeError, RecursionError):
        return frozenset()


def _find_invalid_labels(
    node: Node, wanted: dict[str, str], effects: RuleEffects
) -> tuple[tuple[str, str], ...]:
    """Built-in labels that Kubernetes would refuse; those of rules have been judged."""
    return tuple(
        (key, value)
        for key, value in wanted.items()
        if node.labels.get(key) != value and key not in effects.labels and not is_label_value(value)
    )


def _recorded_labels(node: Node, record: OwnershipRecord) -> Fingerprints:
    if record.is_new and node.labels.get(LIFECYCLE) == _SPOT:
        return {LIFECYCLE: _SPOT}  # nobody but a cloud controller writes that
    return record.managed_fields.machine | record.managed_fields.labels


def _adopted_if_equal(
    node: Node, record: OwnershipRecord, wanted: dict[str, str], machine_keys: set[str]
) -> frozenset[str]:
    """A label that nobody has kept account of, and that says what we would write."""
    if not record.is_new:
        return _NONE
    if not node.is_initialized:  # the rest was given to the Node as it registered
        return BUILT_IN
    if record.state == "unreadable":
        return frozenset(machine_keys)
    return frozenset(wanted)  # the reference controller, or an earlier version, has set it


def _adopted_if_different(node: Node, record: OwnershipRecord, machine_keys: set[str]) -> frozenset[str]:
    """Zone, region and the like are a cloud controller's to say; on a Node in use, only for the machine."""
    if not record.is_new:
        return _NONE
    if not node.is_initialized:
        return BUILT_IN
    return frozenset(machine_keys) if record.state == "absent" else _NONE  # else perhaps a person's


def _retained_labels(effects: frozenset[tuple[RetainedKind, str]]) -> frozenset[str]:
    if not effects:
        return _NONE
    labels = {key for kind, key in effects if kind == "label"}
    fields = (_LABELS_BY_FIELD.get(key, ()) for kind, key in effects if kind == "platformMetadata")
    return frozenset(labels.union(*fields))


def _built_in_labels(platform: PlatformMetadata, cluster_name: str) -> dict[str, str]:
    told = {
        PLATFORM: platform.platform,
        LIFECYCLE: _SPOT if platform.spot else "",
        CLUSTER_NAME: cluster_name,
        **dict.fromkeys(INSTANCE_TYPE, platform.instance_type),
        **dict.fromkeys(ZONE, platform.zone),
        **dict.fromkeys(REGION, platform.region),
    }
    return {key: value for key, value in told.items() if value}
