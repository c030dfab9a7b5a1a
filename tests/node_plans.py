"""Plans in tests, and the Nodes after them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from libs.common.bus.stream_cache import StreamCache
from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.events import Event
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import (
    BLOCKED_CONDITION,
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    Node,
)
from libs.common.contract.node_patch import build_node_patch, build_status_patch
from libs.common.contract.protected_annotation import compute_digest
from services.labeler.core.instance_metadata import InstanceMetadataIndex
from services.labeler.core.plan.plan import ClusterConfig, Plan
from services.labeler.core.plan.plan_node import plan_node
from services.labeler.core.provider_id_index import ProviderIDIndex
from services.labeler.core.rules.compilation import compile_rules
from services.labeler.core.uninitialized_nodes import UninitializedNode, plan_waiting_node
from services.labeler.node_writer import Planner
from tests.builders import NOW
from tests.clocks import ManualClock
from tests.in_memory_api import apply_json_patch, apply_status_patch


def compile_cluster_config(text: str = "", **config: Any) -> ClusterConfig:
    """The cluster config of a file with these rules."""
    return ClusterConfig(rules=compile_rules(parse_cloud_config(text, "ccm-config.yaml")), **config)


def compile_one_rule(**parts: str) -> ClusterConfig:
    """One rule for all machines, each part as YAML: compile_one_rule(labels="{team: web}")."""
    return compile_cluster_config(
        "transformations:\n- name: one\n" + "".join(f"  {k}: {v}\n" for k, v in parts.items())
    )


def plan_only_node(
    waiting: UninitializedNode, event: Event | None, config: ClusterConfig, *, at: float
) -> Plan | None:
    """The monitor's plan for a waiting Node in a cluster without other Nodes."""
    clock = ManualClock()
    index = ProviderIDIndex(StreamCache(clock=clock), lambda: config, clock, InstanceMetadataIndex({}))
    waiting.plan = plan_waiting_node(waiting, event, config, at=at, provider_ids=index)
    return waiting.plan


def to_document(node: Node) -> dict[str, Any]:
    """The Node as JSON."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(node))
    return document


def apply_plan(node: Node, plan: Plan) -> Node:
    """The Node on the API server after the plan's two patches."""
    document = to_document(node)
    gone = BLOCKED_CONDITION if plan.removes_condition else ""
    status = build_status_patch(node, addresses=plan.addresses, remove_condition=gone, now=NOW)
    document = apply_status_patch(document, status)
    answered = msgspec.convert(document, Node)
    return msgspec.convert(apply_json_patch(document, build_node_patch(answered, plan.changes)), Node)


def plan_for(node: Node, facts: MachineFacts, config: ClusterConfig) -> Plan:
    """The plan for a machine that was recognized by its node name."""
    return plan_node(node, facts, "nodename", config)


def make_planner(facts: MachineFacts, config: ClusterConfig) -> Planner:
    """Plans for a machine with these facts, as NodeWriter asks for it."""
    return lambda node, rejection: plan_node(node, facts, "nodename", config, rejection)


def plan_and_apply(node: Node, facts: MachineFacts, config: ClusterConfig) -> Node:
    """The Node after such a plan."""
    return apply_plan(node, plan_for(node, facts, config))


def change_metadata(
    node: Node,
    *,
    labels: dict[str, str | None] | None = None,
    annotations: dict[str, str | None] | None = None,
    taints: tuple[Any, ...] | None = None,
) -> Node:
    """The Node after another client changed these keys (None removes one), or all of its taints."""
    metadata = msgspec.structs.replace(
        node.metadata,
        labels=_merged(node.labels, labels or {}),
        annotations=_merged(node.annotations, annotations or {}),
    )
    spec = node.spec if taints is None else msgspec.structs.replace(node.spec, taints=taints)
    return msgspec.structs.replace(node, metadata=metadata, spec=spec)


def decode_record_annotation(node: Node) -> dict[str, Any]:
    """The content of the Node's ownership record."""
    found: dict[str, Any] = msgspec.json.decode(node.annotations[FIELD_OWNERSHIP_ANNOTATION])
    return found


def set_ownership_record(node: Node, text: str) -> Node:
    """The Node with that text as its ownership record, and with the digest."""
    return change_metadata(
        node,
        labels={FIELD_OWNERSHIP_DIGEST_LABEL: compute_digest(text)},
        annotations={FIELD_OWNERSHIP_ANNOTATION: text},
    )


def exclude_record_label(labels: Mapping[str, str | None]) -> dict[str, str | None]:
    """The labels without the digest of the ownership record."""
    return {key: value for key, value in labels.items() if key != FIELD_OWNERSHIP_DIGEST_LABEL}


def _merged(present: Mapping[str, str], wanted: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**present, **wanted}.items() if value is not None}
