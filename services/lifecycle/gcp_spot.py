"""The reference controller's rule for preempted GCP spot machines, which return with another address."""

from datetime import datetime, timedelta
from typing import Final

from libs.common.contract.node import Node
from services.lifecycle.evidence import Assessment, is_not_ready

PLATFORM_LABEL: Final = ("node.cloudprovider.kubernetes.io/platform", "gcp")
LIFECYCLE_LABEL: Final = ("node.cloudprovider.kubernetes.io/lifecycle", "spot")
NOT_READY_TAINT: Final = ("node.kubernetes.io/not-ready", "NoExecute")  # key and effect
MIN_AGE: Final = timedelta(seconds=30)


def is_gcp_spot(node: Node) -> bool:
    """Whether the rule applies to this Node."""
    return all(node.labels.get(key) == value for key, value in (PLATFORM_LABEL, LIFECYCLE_LABEL))


def assess_gcp_spot(node: Node, now: datetime) -> Assessment:
    """Assess each condition under which the reference controller deletes the Node."""
    if not is_gcp_spot(node):
        return Assessment(missing=("it has no labels of a GCP spot machine",))
    lacks = []
    if node.metadata.deletion_timestamp is not None:
        lacks.append("it is being deleted already")
    if not node.spec.provider_id:
        lacks.append("it has no providerID")
    if not node.is_initialized:
        lacks.append("it is not initialized yet")
    created = node.metadata.creation_timestamp
    if created is None or now - created <= MIN_AGE:
        lacks.append(f"it is not older than {MIN_AGE.total_seconds():g} s")
    if not is_not_ready(node):
        lacks.append("its condition Ready is neither False nor Unknown")
    if NOT_READY_TAINT not in {(taint.key, taint.effect) for taint in node.spec.taints}:
        lacks.append(f"it has no taint {NOT_READY_TAINT[0]}:{NOT_READY_TAINT[1]}")
    if lacks:
        return Assessment(proven=("it is a GCP spot machine",), missing=tuple(lacks))
    return Assessment(proven=("it is a GCP spot machine that is not ready (--delete-preempted-gcp-spot)",))
