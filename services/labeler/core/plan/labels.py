"""Describes the labels of a Node: those from the machine's facts or its cloud account, and those of rules."""

import re
from typing import Final, NamedTuple

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import Node
from services.labeler.core.plan.field_ownership import KeyState, list_machine_config_keys
from services.labeler.core.plan.ownership_record import Fingerprints, OwnershipRecord
from services.labeler.core.plan.plan import PlanInput
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


class LabelState(NamedTuple):
    """The labels of one Node, those that come from the machine's facts, and invalid values."""

    keys: KeyState
    machine: frozenset[str]
    invalid: dict[str, str]  # built-in labels that Kubernetes would reject


def describe_labels(inputs: PlanInput, record: OwnershipRecord) -> LabelState:
    """Return the labels that the labeler may change: those of the machine and those of rules.

    A label that Talos stops reporting stays unchanged (Kubernetes issue 141631): an unstable metadata service
    must not move a node out of its zone. Only a missing lifecycle removes its label.
    """
    node, effects, managed = inputs.node, inputs.effects, record.managed_fields
    cluster_name = inputs.config.cluster_name or inputs.facts.cluster_name
    supplement = inputs.facts.supplement
    supplied = dict(supplement.labels) if supplement is not None else {}
    reported = _built_in_labels(inputs.facts.platform, cluster_name) | supplied
    desired = _built_in_labels(effects.platform, cluster_name) | supplied | effects.labels
    invalid = _pop_invalid_labels(node, desired, effects)
    machine_keys = {key for key, value in desired.items() if reported.get(key) == value}
    unreported = managed.machine.keys() - desired.keys() - reported.keys() - {LIFECYCLE}
    retained = _retained_labels(effects.retained).union(unreported, invalid)
    if_equal, if_different = _adopted_labels(node, record, desired, machine_keys)
    return LabelState(
        KeyState(
            kind="labels",
            current=node.labels,
            desired=desired,
            recorded=_recorded_labels(node, record),
            retained=retained,
            adopted_if_equal=if_equal,
            adopted_if_different=if_different,
            kept=managed.kept.get("labels", {}),
            machine_config_keys=list_machine_config_keys(node, "labels"),
        ),
        machine=frozenset(machine_keys - (retained & managed.labels.keys()))
        | (retained & managed.machine.keys()),
        invalid=invalid,
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


def _recorded_labels(node: Node, record: OwnershipRecord) -> Fingerprints:
    if record.is_new and node.labels.get(LIFECYCLE) == _SPOT:
        return {LIFECYCLE: _SPOT}  # only a cloud controller writes this label
    return record.managed_fields.machine | record.managed_fields.labels


def _adopted_labels(
    node: Node, record: OwnershipRecord, desired: dict[str, str], machine_keys: set[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the unrecorded labels to adopt with an equal value, and those to adopt and change.

    Built-in labels belong to the cloud controller.
    """
    if not record.is_new:
        return _NONE, _NONE
    if not node.is_initialized:  # all other labels come from the kubelet's registration
        return BUILT_IN, BUILT_IN
    if record.state == "unreadable":  # a person may have set a different one
        return frozenset(machine_keys), _NONE
    # The reference controller or an earlier version has set equal ones.
    return frozenset(desired), frozenset(machine_keys)


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
