"""Plans labels and annotations: the built-in labels from the machine's facts, and the keys of rules."""

import re
from typing import Final

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import Node
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.plan.field_ownership import KeyState, list_machine_config_keys, resolve_ownership
from services.labeler.core.plan.notices import Notice, build_conflict_notices
from services.labeler.core.plan.ownership_record import Fingerprints, ManagedFields, OwnershipRecord
from services.labeler.core.plan.plan import PlanInput, PlanPart
from services.labeler.core.rules.effects import RetainedKind, RuleEffects

PLATFORM: Final = "node.cloudprovider.kubernetes.io/platform"
LIFECYCLE: Final = "node.cloudprovider.kubernetes.io/lifecycle"
CLUSTER_NAME: Final = "node.cloudprovider.kubernetes.io/clustername"
INSTANCE_TYPE: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
ZONE: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
REGION: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")

_NONE: Final[frozenset[str]] = frozenset()
_SPOT: Final = "spot"
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABELS_BY_FIELD: Final = {
    "zone": ZONE,
    "region": REGION,
    "instance_type": INSTANCE_TYPE,
    "spot": (LIFECYCLE,),
}
BUILT_IN: Final = frozenset({PLATFORM, LIFECYCLE, CLUSTER_NAME, *INSTANCE_TYPE, *ZONE, *REGION})


def plan_labels(inputs: PlanInput, record: OwnershipRecord) -> PlanPart:
    """Plan the changes to the labels that the labeler may change.

    A label that Talos stops reporting stays unchanged (Kubernetes issue 141631): an unstable metadata service
    must not move a node out of its zone. Only a missing lifecycle removes its label.
    """
    node, effects = inputs.node, inputs.effects
    cluster_name = inputs.config.cluster_name or inputs.facts.cluster_name
    reported = _built_in_labels(inputs.facts.platform, cluster_name)
    desired = _built_in_labels(effects.platform, cluster_name) | effects.labels
    invalid = _pop_invalid_labels(node, desired, effects)
    notices = _build_invalid_notices(invalid)
    machine_keys = {key for key, value in desired.items() if reported.get(key) == value}
    unreported = record.managed_fields.machine.keys() - desired.keys() - reported.keys() - {LIFECYCLE}
    retained = _retained_labels(effects.retained).union(unreported, invalid)
    found = resolve_ownership(
        KeyState(
            kind="labels",
            current=node.labels,
            desired=desired,
            recorded=_recorded_labels(node, record),
            retained=retained,
            adopted_if_equal=_adopted_if_equal(node, record, desired, machine_keys),
            adopted_if_different=_adopted_if_different(node, record, machine_keys),
            kept=record.managed_fields.kept.get("labels", {}),
            machine_config_keys=list_machine_config_keys(node, "labels"),
        )
    )
    machine = (machine_keys - (retained & record.managed_fields.labels.keys())) | (
        retained & record.managed_fields.machine.keys()
    )
    return PlanPart(
        changes=NodeChanges(labels=found.changes),
        recorded=ManagedFields(
            machine={key: value for key, value in found.recorded.items() if key in machine},
            labels={key: value for key, value in found.recorded.items() if key not in machine},
            kept={"labels": found.kept} if found.kept else {},
        ),
        notices=(*build_conflict_notices(node.name, "label", found.conflicts), *notices),
        machine_config_keys=found.machine_config_keys,
    )


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


def is_label_value(value: str) -> bool:
    """Return whether Kubernetes accepts a non-empty text as a label's value."""
    return _LABEL_VALUE.fullmatch(value) is not None


def _pop_invalid_labels(node: Node, desired: dict[str, str], effects: RuleEffects) -> dict[str, str]:
    """Remove and return the built-in labels that Kubernetes would reject; rules validate their own."""
    invalid = {
        key: value
        for key, value in desired.items()
        if node.labels.get(key) != value and key not in effects.labels and not is_label_value(value)
    }
    for key in invalid:
        del desired[key]
    return invalid


def _build_invalid_notices(invalid: dict[str, str]) -> tuple[Notice, ...]:
    if not invalid:
        return ()
    rejected = ", ".join(f"{key}={value[:100]!r}" for key, value in invalid.items())
    text = f"labels skipped, because Kubernetes rejects their values: {rejected}"
    return (Notice(reason="LabelSkipped", message=text),)


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
