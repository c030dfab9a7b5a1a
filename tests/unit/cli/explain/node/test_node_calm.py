"""`talos-ccm explain node` reports no problem for a healthy Node."""

from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from cli.cluster.described_node import DescribedNode
from cli.cluster.pods import Pod
from cli.explain.node.node_context import NodeContext
from cli.explain.node.node_evidence import NodeEvidence
from cli.explain.node.node_explanation import NodeExplanation, explain_node_evidence
from cli.explain.node.text import format_explanation
from cli.inside.flow_snapshot import FlowUnavailable
from cli.render.compiled_config import compile_config
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeCondition
from services.lifecycle.decide import DeletionPolicy
from tests.builders import NOW, make_facts, make_node
from tests.cli_screen import render_lines

READY: Final = NodeCondition(type="Ready", status="True")
WITHOUT_CNI: Final = NodeCondition(
    type="Ready", status="False", reason="KubeletNotReady", message="cni plugin not initialized"
)
BLOCKED: Final = NodeCondition(
    type=BLOCKED_CONDITION, status="True", reason="TalosTimeout", message="PlatformMetadata: no answer"
)
NO_RIGHT: Final = FlowUnavailable(reason="it takes the verbs get and create for pods/exec")
OF_TEAM_A: Final = """
ownership:
  nodeSelector:
    - matchExpressions: [{key: team, operator: In, values: [a]}]
"""
OF_TALOS: Final = "ownership: {providerIDSchemes: [talos]}\n"


def registered(ago: timedelta, *, annotated: bool = True, **fields: Any) -> Node:
    node = make_node(**{"conditions": (READY,)} | fields)
    changed: dict[str, Any] = {"creation_timestamp": NOW - ago}
    if not annotated:
        changed["annotations"] = {}
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, **changed))


def explained(node: Node, *, file: str = "", **evidence: Any) -> NodeExplanation:
    in_use = compile_config(file, "ccm-config.yaml") if file else None
    return explain_node_evidence(
        NodeEvidence(node=node, nodes=(node,), at=NOW, config_file=in_use, **evidence), DeletionPolicy()
    )


def answers(node: Node) -> DescribedNode:
    return DescribedNode(node=node, facts=make_facts(node_name=node.name))


def faults(explanation: NodeExplanation) -> list[str]:
    return [finding.fault for finding in explanation.verdict.findings]


def pods(service: str, *ready: bool) -> tuple[Pod, ...]:
    labels = {"app.kubernetes.io/component": service}
    return tuple(
        msgspec.convert(
            {
                "metadata": {"name": f"ccm-{service}-{number}", "labels": labels},
                "status": {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": str(is_ready)}],
                    "containerStatuses": [{"name": service}],
                },
            },
            Pod,
        )
        for number, is_ready in enumerate(ready)
    )


@pytest.mark.parametrize("conditions", [(), (WITHOUT_CNI,)])
def test_a_node_that_has_just_registered_waits_for_its_cni_and_is_not_stuck(
    conditions: tuple[NodeCondition, ...],
):
    node = registered(timedelta(seconds=5), conditions=conditions)
    joining = explained(node, machine_result=answers(node))
    assert (faults(joining), joining.verdict.state, joining.exit_status) == ([], "moving", 0)
    late = registered(timedelta(minutes=2), conditions=conditions)
    assert "not-ready" in faults(explained(late, machine_result=answers(late)))


def test_one_that_is_initialized_and_has_just_registered_is_not_told_to_be_ready():
    node = registered(
        timedelta(seconds=20), conditions=(WITHOUT_CNI,), taints=(), provider_id="talos://metal/10.0.0.5"
    )
    starting = explained(node, machine_result=answers(node))
    assert (starting.verdict.state, starting.exit_status) == ("moving", 0)
    assert render_lines(format_explanation(starting, NOW)).startswith("web-1 is starting since ")


def test_a_kubelet_that_falls_silent_is_told_at_once():
    silent = NodeCondition(type="Ready", status="Unknown", reason="NodeStatusUnknown", message="stopped")
    node = registered(timedelta(seconds=50), conditions=(silent,))
    assert "kubelet-silent" in faults(explained(node, machine_result=answers(node)))


def test_a_node_whose_taint_others_took_off_is_not_well_before_it_has_its_provider_id():
    node = registered(timedelta(hours=1), taints=())
    taken = explained(node, machine_result=answers(node))
    assert (taken.verdict.state, taken.exit_status) == ("moving", 0)
    assert render_lines(format_explanation(taken, NOW)).startswith("web-1 is being initialized since ")


def test_the_kubelet_of_a_node_that_the_file_leaves_to_others_may_be_started_as_it_likes():
    bare = registered(timedelta(hours=1), annotated=False, taints=())
    others = explained(bare, file=OF_TEAM_A, is_query_skipped=True)
    assert (faults(others), others.verdict.state, others.exit_status) == (["of-another"], "another's", 0)
    theirs = registered(timedelta(hours=1), annotated=False, taints=(), provider_id="aws:///z/i-1")
    assert faults(explained(theirs, file=OF_TALOS)) == ["of-another"]
    assert faults(explained(bare, file=OF_TALOS)) == ["kubelet-not-external"], (
        "the file does not decide ownership"
    )
    assert faults(explained(bare)) == ["kubelet-not-external"]


def test_one_pod_of_nats_that_is_replaced_does_not_hide_why_a_node_waits():
    node = registered(timedelta(minutes=10), conditions=(READY, BLOCKED))
    replaced = NodeContext(pods=pods("nats", False, True, True))
    assert faults(explained(node, flow=NO_RIGHT, context=replaced)) == ["talos-silent"]
    down = NodeContext(pods=pods("nats", False, False, False))
    assert faults(explained(node, flow=NO_RIGHT, context=down)) == ["nats-silent"]


def test_one_pod_of_metadata_that_is_replaced_is_not_why_nobody_is_asked():
    node = registered(timedelta(minutes=10))
    replaced = NodeContext(pods=pods("metadata", False, True) + pods("labeler", True))
    assert faults(explained(node, flow=NO_RIGHT, context=replaced)) == ["not-told"]
    assert faults(explained(node, flow=NO_RIGHT, context=NodeContext(pods=pods("metadata", False)))) == [
        "metadata-silent"
    ]


def test_a_machine_that_was_not_to_be_asked_is_not_told_to_fail():
    joining = registered(timedelta(seconds=5), conditions=())
    untold = explained(joining, not_queried_reason="not queried: --without-talos", is_query_skipped=True)
    assert (untold.verdict.state, untold.exit_status) == ("moving", 2)
    bare = registered(timedelta(seconds=5), conditions=(), annotated=False)
    assert explained(bare, not_queried_reason="no annotation", is_query_skipped=True).exit_status == 1
