"""The built-in labels: ours, told by the machine, and kept right for as long as the Node lives."""

import re
from typing import Final

import msgspec

from libs.common.machine import PlatformMetadata
from libs.common.node import Node

PLATFORM: Final = "node.cloudprovider.kubernetes.io/platform"
LIFECYCLE: Final = "node.cloudprovider.kubernetes.io/lifecycle"
CLUSTER_NAME: Final = "node.cloudprovider.kubernetes.io/clustername"
INSTANCE_TYPE: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
ZONE: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
REGION: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")

_SPOT: Final = "spot"
_OWNED_BY_TALOS: Final = "talos.dev/owned-labels"  # JSON list; Talos rewrites these keys for ever
_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class LabelChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What the labels should become, and what was left out of it."""

    labels: dict[str, str | None]  # None removes the key
    invalid: tuple[tuple[str, str], ...] = ()  # (key, value) that Kubernetes would refuse
    left_to_talos: tuple[str, ...] = ()  # keys from the machine config whose value we would change


def label_changes(node: Node, platform: PlatformMetadata, cluster_name: str) -> LabelChanges:
    """The built-in labels that differ from what the machine says.

    What Talos stops reporting stays as it is (Kubernetes issue 141631): a flickering metadata service must
    not move a node out of its zone. Only the lifecycle is a statement by its absence.
    """
    wanted = _wanted(platform, cluster_name)
    if not platform.spot and node.labels.get(LIFECYCLE) == _SPOT:
        wanted[LIFECYCLE] = None
    differing = {key: value for key, value in wanted.items() if node.labels.get(key) != value}
    talos = owned_by_talos(node)
    ours = {key: value for key, value in differing.items() if key not in talos}
    invalid = {key: value for key, value in ours.items() if value is not None and not is_label_value(value)}
    return LabelChanges(
        labels={key: value for key, value in ours.items() if key not in invalid},
        invalid=tuple(invalid.items()),
        left_to_talos=tuple(key for key in differing if key in talos),
    )


def is_label_value(value: str) -> bool:
    """Whether Kubernetes takes a non-empty text as a label's value."""
    return _VALUE.fullmatch(value) is not None


def owned_by_talos(node: Node) -> frozenset[str]:
    """Label keys that the machine config sets: Talos writes them again whenever they change."""
    return names_in(node.annotations.get(_OWNED_BY_TALOS, ""))


def names_in(annotation: str) -> frozenset[str]:
    """A `talos.dev/owned-*` annotation's JSON list of keys; empty when it is none."""
    try:
        return frozenset(msgspec.json.decode(annotation, type=list[str]))
    except (msgspec.DecodeError, RecursionError):
        return frozenset()


def _wanted(platform: PlatformMetadata, cluster_name: str) -> dict[str, str | None]:
    told = {
        PLATFORM: platform.platform,
        LIFECYCLE: _SPOT if platform.spot else "",
        CLUSTER_NAME: cluster_name,
        **dict.fromkeys(INSTANCE_TYPE, platform.instance_type),
        **dict.fromkeys(ZONE, platform.zone),
        **dict.fromkeys(REGION, platform.region),
    }
    return {key: value for key, value in told.items() if value}
