"""Plans the labels of a Node: the built-in ones from the machine's facts, and those of rules."""

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
_TALOS_OWNED_LABELS: Final = "talos.dev/owned-labels"  # JSON list of keys that Talos always rewrites
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


_LABELS_BY_FIELD: Final = {
    "zone": ZONE,
    "region": REGION,
    "instance_type": INSTANCE_TYPE,
    "spot": (LIFECYCLE,),
}
BUILT_IN: Final = frozenset({PLATFORM, LIFECYCLE, CLUSTER_NAME, *INSTANCE_TYPE, *ZONE, *REGION})


class LabelChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to the labels, their entries in the record, and the labels that stay unchanged."""

    changes: dict[str, str | None]  # None removes the key
    machine_record: Fingerprints  # record entries of labels that have the machine's value
    rule_record: Fingerprints
    invalid_labels: tuple[tuple[str, str], ...] = ()  # (key, value) that Kubernetes would reject
    conflicts: tuple[OwnershipConflict, ...] = ()
    machine_config_keys: tuple[str, ...] = ()  # set by the machine config to a value that is not desired


def plan_labels(
    node: Node, record: OwnershipRecord, reported: PlatformMetadata, effects: RuleEffects, cluster_name: str
) -> LabelChanges:
    """Plan the changes to the labels that the labeler may change; `reported` is the machine's metadata.

    A label that Talos stops reporting stays unchanged (Kubernetes issue 141631): an unstable metadata service
    must not move a node out of its zone. Only a missing lifecycle removes its label.
    """
    reported_labels = _built_in_labels(reported, cluster_name)
    desired = _built_in_labels(effects.platform, cluster_name) | effects.labels
    invalid = _find_invalid_labels(node, desired, effects)
    for key, _ in invalid:
        del desired[key]
    machine_keys = {key for key, value in desired.items() if reported_labels.get(key) == value}
    unreported = record.managed_fields.machine.keys() - desired.keys() - reported_labels.keys() - {LIFECYCLE}
    retained = _retained_labels(effects.retained).union(unreported, (key for key, _ in invalid))
    found = resolve_ownership(
        KeyState(
            kind="labels",
            current=node.labels,
            desired=desired,
            recorded=_recorded_labels(node, record),
            machine_config_keys=parse_owned_keys(node.annotations.get(_TALOS_OWNED_LABELS, "")),
            retained=retained,
            adopted_if_equal=_adopted_if_equal(node, record, desired, machine_keys),
            adopted_if_different=_adopted_if_different(node, record, machine_keys),
        )
    )
    machine = (machine_keys - (retained & record.managed_fields.labels.keys())) | (
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
    """Return whether Kubernetes accepts a non-empty text as a label's value."""
    return _LABEL_VALUE.fullmatch(value) is not None


def parse_owned_keys(annotation: str) -> frozenset[str]:
    """Return the keys of the JSON list in a `talos.dev/owned-*` annotation; empty if it is invalid."""
    if not annotation:
        return _NONE
    try:
        return frozenset(msgspec.json.decode(annotation, type=list[str]))
    except (msgspec.DecodeError, RecursionError):
        return frozenset()


def _find_invalid_labels(
    node: Node, desired: dict[str, str], effects: RuleEffects
) -> tuple[tuple[str, str], ...]:
    """Return key and value of built-in labels that Kubernetes would reject; rules validate their own."""
    return tuple(
        (key, value)
        for key, value in desired.items()
        if node.labels.get(key) != value and key not in effects.labels and not is_label_value(value)
    )


def _recorded_labels(node: Node, record: OwnershipRecord) -> Fingerprints:
    if record.is_new and node.labels.get(LIFECYCLE) == _SPOT:
        return {LIFECYCLE: _SPOT}  # only a cloud controller writes this label
    return record.managed_fields.machine | record.managed_fields.labels


def _adopted_if_equal(
    node: Node, record: OwnershipRecord, desired: dict[str, str], machine_keys: set[str]
) -> frozenset[str]:
    """Return the unrecorded labels to adopt if they already have the desired value."""
    if not record.is_new:
        return _NONE
    if not node.is_initialized:  # all other labels come from the kubelet's registration
        return BUILT_IN
    if record.state == "unreadable":
        return frozenset(machine_keys)
    return frozenset(desired)  # the reference controller or an earlier version has set them


def _adopted_if_different(node: Node, record: OwnershipRecord, machine_keys: set[str]) -> frozenset[str]:
    """Return the unrecorded labels to adopt and change.

    Built-in labels belong to the cloud controller. On an initialized Node, only those with the machine's
    value are adopted.
    """
    if not record.is_new:
        return _NONE
    if not node.is_initialized:
        return BUILT_IN
    return frozenset(machine_keys) if record.state == "absent" else _NONE  # else a person may have set it


def _retained_labels(effects: frozenset[tuple[RetainedKind, str]]) -> frozenset[str]:
    if not effects:
        return _NONE
    labels = {key for kind, key in effects if kind == "label"}
    fields = (_LABELS_BY_FIELD.get(key, ()) for kind, key in effects if kind == "platformMetadata")
    return frozenset(labels.union(*fields))


def _built_in_labels(platform: PlatformMetadata, cluster_name: str) -> dict[str, str]:
    labels = {
        PLATFORM: platform.platform,
        LIFECYCLE: _SPOT if platform.spot else "",
        CLUSTER_NAME: cluster_name,
        **dict.fromkeys(INSTANCE_TYPE, platform.instance_type),
        **dict.fromkeys(ZONE, platform.zone),
        **dict.fromkeys(REGION, platform.region),
    }
    return {key: value for key, value in labels.items() if value}
