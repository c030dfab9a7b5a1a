"""Reports of cloud accounts about the instance of a Node, and Nodes with their record."""

from datetime import datetime, timedelta
from typing import Any

from libs.common.contract.events import InstanceExists, InstanceGone, InstanceShutDown, InstanceUnknown
from libs.common.contract.instances import (
    RECORD_ANNOTATION,
    RECORD_DIGEST_LABEL,
    InstanceAnchor,
    InstanceRecord,
    InstanceWitness,
    encode_instance_record,
)
from libs.common.contract.node import Node
from libs.common.contract.protected_annotation import compute_digest
from tests.builders import NOW, STREAM_ID
from tests.lifecycle_actors import OWN_UUID, make_lost_node

ACCOUNT = "prod"
PROVIDER_ID = "hcloud://1001"
ANCHOR = InstanceAnchor(kind="network", id="77")
LOADED_AT = NOW - timedelta(days=1)
BY_ANCHOR = "network/77"


def make_record(node: Node, **fields: Any) -> InstanceRecord:
    """The record of an instance that `ACCOUNT` has shown alive."""
    usual: dict[str, Any] = {
        "account": ACCOUNT,
        "provider_id": node.spec.provider_id,
        "node_uid": node.uid,
        "system_uuid": node.status.node_info.system_uuid,
        "anchor": ANCHOR,
        "seen_at": NOW - timedelta(hours=3),
    }
    return InstanceRecord(**(usual | fields))


def make_recorded_node(
    name: str = "web-1", record: dict[str, Any] | None = None, digest: str | None = None, **fields: Any
) -> Node:
    """A lost Node with a record; `record` replaces fields of it, `digest` the label's value."""
    usual: dict[str, Any] = {"provider_id": PROVIDER_ID, "system_uuid": OWN_UUID}
    node = make_lost_node(name, **(usual | fields))
    text = encode_instance_record(make_record(node, **(record or {})))
    return make_lost_node(
        name,
        annotations={RECORD_ANNOTATION: text},
        labels={RECORD_DIGEST_LABEL: compute_digest(text) if digest is None else digest},
        **(usual | fields),
    )


def make_report(kind: type[Any], node: Node, *, at: datetime = NOW, **fields: Any) -> Any:
    """A report of one round that began at that time and took two seconds."""
    usual: dict[str, Any] = {
        "stream_id": STREAM_ID,
        "account": ACCOUNT,
        "name": node.name,
        "node_uid": node.uid,
        "provider_id": node.spec.provider_id,
        "asked_at": at,
        "answered_at": at + timedelta(seconds=2),
        "credential_loaded_at": LOADED_AT,
    }
    return kind(**(usual | fields))


def make_exists(node: Node, *, at: datetime = NOW, **fields: Any) -> InstanceExists:
    """The account has the instance, and its project has the anchor."""
    report: InstanceExists = make_report(InstanceExists, node, at=at, **({"anchor": ANCHOR} | fields))
    return report


def make_shut_down(node: Node, *, at: datetime = NOW, **fields: Any) -> InstanceShutDown:
    """The account has the instance, and it is off."""
    report: InstanceShutDown = make_report(InstanceShutDown, node, at=at, **fields)
    return report


def make_gone(node: Node, *, at: datetime = NOW, **fields: Any) -> InstanceGone:
    """The account has the anchor and not the instance."""
    witness = InstanceWitness(kind="anchor", id=BY_ANCHOR, asked_at=at + timedelta(seconds=1))
    report: InstanceGone = make_report(InstanceGone, node, at=at, **({"witness": witness} | fields))
    return report


def make_unknown(node: Node, *, at: datetime = NOW, **fields: Any) -> InstanceUnknown:
    """The cloud did not answer."""
    report: InstanceUnknown = make_report(InstanceUnknown, node, at=at, **({"reason": "HTTP 503"} | fields))
    return report
