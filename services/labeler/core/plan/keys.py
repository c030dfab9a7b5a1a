"""Plans the labels, annotations and taints of a Node: those of its machine and those of rules.

The labeler sets the taints of rules before the scheduler may use the Node. It does not restore a taint that
was removed from an initialized Node, because the agent of a start-up taint removes the taint when it is done.
It withholds taints from a Node that was in use before its record began, until an operator opts in.
"""

from typing import Final, NamedTuple

from libs.common.cloud_config.kubernetes_names import label_value_problem
from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import APPLY_TAINTS_ANNOTATION, UNINITIALIZED_TAINT, Node
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.blocker import block
from services.labeler.core.plan.field_ownership import (
    NO_CHANGES,
    KeyChanges,
    KeyState,
    list_machine_config_keys,
    read_taint_values,
    resolve_ownership,
    taint_key,
)
from services.labeler.core.plan.kept_keys import KeptKey, list_kept_keys
from services.labeler.core.plan.notices import build_invalid_label_notices, build_kept_notices
from services.labeler.core.plan.ownership_record import (
    RECORD_VERSION,
    FieldKind,
    Fingerprints,
    ManagedFields,
    OwnershipRecord,
)
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
_LABELS_BY_FIELD: Final = {
    "zone": ZONE,
    "region": REGION,
    "instance_type": INSTANCE_TYPE,
    "spot": (LIFECYCLE,),
}
BUILT_IN: Final = frozenset({PLATFORM, LIFECYCLE, CLUSTER_NAME, *INSTANCE_TYPE, *ZONE, *REGION})


def plan_keys(inputs: PlanInput, record: OwnershipRecord) -> PlanPart:
    """Plan the changes to the keys that the labeler may change; always remove the uninitialized taint.

    Blocked while the machine config sets the uninitialized taint, because Talos would restore it.
    """
    node, effects, managed = inputs.node, inputs.effects, record.managed_fields
    labels = _describe_labels(inputs, record)
    found: dict[FieldKind, KeyChanges] = {
        "labels": resolve_ownership(labels.keys),
        "annotations": NO_CHANGES,
        "taints": NO_CHANGES,
    }
    if effects.annotations or managed.annotations:
        found["annotations"] = resolve_ownership(_describe_annotations(inputs, record))
    if effects.taints or managed.taints:
        found["taints"] = resolve_ownership(_describe_taints(inputs, record))
    taints, withheld = found["taints"].changes, found["taints"].withheld
    recorded = _record_keys(found, labels.machine)
    is_set_by_talos = not node.is_initialized and UNINITIALIZED_TAINT in list_machine_config_keys(
        node, "taints"
    )
    return PlanPart(
        changes=NodeChanges(
            labels=found["labels"].changes,
            # While a rule with a withheld taint fails, the operator's request is not met yet.
            annotations=found["annotations"].changes | ({} if withheld else _end_opt_in(node)),
            set_taints=tuple(each for each in effects.taints if taints.get(taint_key(each)) is not None),
            remove_taints=tuple(
                each
                for each in node.spec.taints
                if each.key == UNINITIALIZED_TAINT or taints.get(taint_key(each), "") is None
            ),
        ),
        recorded=recorded,
        blocker=block("TaintSetByMachineConfig") if is_set_by_talos else None,
        notices=(
            *build_kept_notices(node.name, _list_new_kept_keys(node, managed, recorded)),
            *build_invalid_label_notices(labels.invalid),
        ),
        machine_config_keys=tuple(key for keys in found.values() for key in keys.machine_config_keys),
    )


def _record_keys(found: dict[FieldKind, KeyChanges], machine: frozenset[str]) -> ManagedFields:
    labels = found["labels"].recorded
    return ManagedFields(
        version=RECORD_VERSION,
        machine={key: value for key, value in labels.items() if key in machine},
        labels={key: value for key, value in labels.items() if key not in machine},
        annotations=found["annotations"].recorded,
        taints=found["taints"].recorded,
        kept={kind: keys.kept for kind, keys in found.items() if keys.kept},
        withheld=found["taints"].withheld,
    )


def _list_new_kept_keys(node: Node, before: ManagedFields, after: ManagedFields) -> tuple[KeptKey, ...]:
    known = {(each.kind, each.key) for each in list_kept_keys(node, before)}
    return tuple(each for each in list_kept_keys(node, after) if (each.kind, each.key) not in known)


def _describe_annotations(inputs: PlanInput, record: OwnershipRecord) -> KeyState:
    node, desired = inputs.node, inputs.effects.annotations
    return KeyState(
        kind="annotations",
        current=node.annotations,
        desired=desired,
        recorded=record.managed_fields.annotations,
        kept=record.managed_fields.kept.get("annotations", {}),
        machine_config_keys=list_machine_config_keys(node, "annotations"),
        retained=frozenset(key for kind, key in inputs.effects.retained if kind == "annotation"),
        adopted_if_equal=frozenset(desired) if _comes_from_reference(node, record) else frozenset(),
    )


def _describe_taints(inputs: PlanInput, record: OwnershipRecord) -> KeyState:
    node, effects, managed = inputs.node, inputs.effects, record.managed_fields
    desired = read_taint_values(effects.taints)
    retained_keys = {key for kind, key in effects.retained if kind == "taint"}
    adopted = frozenset(desired) if _comes_from_reference(node, record) else frozenset[str]()
    withheld = adopted or frozenset(managed.withheld)
    released = _released_taints(node, record, desired)
    return KeyState(
        kind="taints",
        current=read_taint_values(node.spec.taints),
        desired=desired,
        recorded=managed.taints,
        machine_config_keys=list_machine_config_keys(node, "taints"),
        retained=frozenset(key for key in managed.taints if key.rpartition(":")[0] in retained_keys),
        adopted_if_equal=adopted,
        released=released - withheld if _is_opted_in(node) else released,
        withheld=withheld,
        kept={**managed.kept.get("taints", {}), **managed.withheld},
    )


def _comes_from_reference(node: Node, record: OwnershipRecord) -> bool:
    """Return whether the reference controller may have set equal annotations and taints on the Node."""
    return record.state == "absent" and node.is_initialized


def _released_taints(node: Node, record: OwnershipRecord, desired: dict[str, str]) -> frozenset[str]:
    """Return the taints that stay absent: pods already run on the Node without them."""
    if not node.is_initialized:
        return frozenset()
    return frozenset(record.managed_fields.taints) if record.state == "read" else frozenset(desired)


def _is_opted_in(node: Node) -> bool:
    return node.annotations.get(APPLY_TAINTS_ANNOTATION) == "true"


def _end_opt_in(node: Node) -> dict[str, str | None]:
    return {APPLY_TAINTS_ANNOTATION: None} if _is_opted_in(node) else {}


class _LabelState(NamedTuple):
    """The labels of one Node, those that come from the machine's facts, and invalid values."""

    keys: KeyState
    machine: frozenset[str]
    invalid: dict[str, str]  # built-in labels that Kubernetes would reject


def _describe_labels(inputs: PlanInput, record: OwnershipRecord) -> _LabelState:
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
    return _LabelState(
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


def _pop_invalid_labels(node: Node, desired: dict[str, str], effects: RuleEffects) -> dict[str, str]:
    """Remove and return the built-in labels that Kubernetes would reject; rules validate their own."""
    invalid = {
        key: value
        for key, value in desired.items()
        if node.labels.get(key) != value and key not in effects.labels and label_value_problem(value)
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
