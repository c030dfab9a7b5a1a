"""Requests to Kubernetes that change Nodes and certificate requests, as an API server receives them."""

from functools import partial
from typing import Any

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.contract.node import Node, NodeCondition
from libs.common.contract.node_patch import Operation
from libs.common.kube.api import KubeApi
from libs.common.kube.json_patch_body import json_patch_body
from services.csr.approval_writer import ApprovalWriter
from services.csr.decide import Decision, decide
from services.ipam.allocation_plan import Assignment
from services.ipam.allocator import Allocator
from services.ipam.claims_api import KubernetesClaims
from services.labeler.blocker import block_on_machine_config_taint
from services.labeler.event_deduplicator import EventDeduplicator
from services.labeler.mutation_cache import MutationCache
from services.labeler.node_writer import NodeWriter
from services.lifecycle.shutdown_taint import SHUTDOWN_TAINT, SHUTTING_DOWN_STAGE
from services.lifecycle.shutdown_taint_writer import ShutdownTaintWriter
from tests.builders import NOW, make_csr_enriched, make_facts, make_node
from tests.contract.interface_snapshot import assert_unchanged
from tests.csr_cases import CASES, FACTS, NODES, POLICY, make_metadata_events
from tests.lifecycle_cases import OTHERS, make_lost_node, make_unreachable
from tests.node_plans import FactsPlanner, apply_plan, compile_one_rule, plan_for, to_document
from tests.recorded_requests import RecordedRequests, without_texts
from tests.unit.services.csr.test_claim_index import claims_of

FACTS_OF_WEB = make_facts(
    platform="hcloud",
    provider_id="hcloud://7",
    region="eu-central",
    zone="fsn1-dc14",
    instance_type="cx22",
    spot=True,
    cluster_name="prod",
)
RULE = compile_one_rule(
    labels='{team: web, "example.com/zone": "{{ .Zone }}"}',
    annotations='{"example.com/contact": "a & b <c>"}',
    taints='{"example.com/agent": "wait:NoSchedule"}',
)


def held(recorded: RecordedRequests, node: Node) -> Node:
    """That Node is in Kubernetes."""
    recorded.objects[f"/api/v1/nodes/{node.name}"] = to_document(node)
    return node


def labeler(kube: KubeApi) -> NodeWriter:
    return NodeWriter(
        kube, EventDeduplicator(), MutationCache(clock=lambda: 0.0), now=lambda: NOW, observe_only=False
    )


async def test_the_labeler_initializes_a_node_and_later_removes_what_a_rule_set(
    kube: KubeApi, recorded: RecordedRequests
):
    node = held(recorded, make_node())
    plan = plan_for(node, FACTS_OF_WEB, RULE)
    await labeler(kube).apply(node, FactsPlanner(FACTS_OF_WEB, RULE))
    joined, recorded.requests = recorded.requests, []
    ruled = held(recorded, apply_plan(node, plan))
    moved = msgspec.structs.replace(
        FACTS_OF_WEB, platform=msgspec.structs.replace(FACTS_OF_WEB.platform, spot=False, zone="nbg1-dc3")
    )
    await labeler(kube).apply(ruled, FactsPlanner(moved, compile_one_rule()))
    assert_unchanged("kubernetes_labeler_patches", {"joining": joined, "changed": recorded.requests})


async def test_the_labeler_sets_and_removes_the_condition_of_a_node_that_waits(
    kube: KubeApi, recorded: RecordedRequests
):
    node = held(recorded, make_node())
    await labeler(kube).report_blocker(node, block_on_machine_config_taint(), with_event=False)
    assert node.find_condition("") is None
    blocked = NodeCondition(
        type=recorded.requests[0]["body"]["status"]["conditions"][0]["type"],
        status="True",
        reason=block_on_machine_config_taint().reason,
    )
    waits = held(recorded, make_node(conditions=(blocked,)))
    await labeler(kube).apply(waits, FactsPlanner(FACTS_OF_WEB, compile_one_rule()))
    assert_unchanged("kubernetes_labeler_condition", without_texts(recorded.requests[:2]))


async def test_ipam_gives_a_node_its_pod_cidrs(kube: KubeApi, recorded: RecordedRequests):
    node = held(recorded, make_node(labels={"example.com/team": "web"}))
    allocator = Allocator(KubernetesClaims(kube), now=lambda: NOW)
    given = Assignment(uid=node.uid, pod_cidrs=("10.244.1.0/24", "fd00:10:244:1::/64"))
    await allocator.assign(node, given)
    await allocator.assign(node, given, fenced_labels=("example.com/team", "example.com/absent"))
    assert_unchanged("kubernetes_ipam_patches", recorded.requests)


async def test_lifecycle_sets_and_removes_the_shutdown_taint_and_deletes_a_node(
    kube: KubeApi, recorded: RecordedRequests
):
    taints = ShutdownTaintWriter(kube, ownership=Ownership, is_dry_run=False)
    lost = held(recorded, make_lost_node())
    last = msgspec.structs.replace(make_facts(), stage=SHUTTING_DOWN_STAGE)
    silent = msgspec.structs.replace(OTHERS, kind="refused")
    assert await taints.apply(lost, make_unreachable(lost, fault=silent, last_known=last))
    back = held(recorded, make_lost_node("web-2", taints=(SHUTDOWN_TAINT,), conditions=(is_ready(),)))
    assert await taints.apply(back, None)
    await kube.delete_node(lost.name, uid=lost.uid, resource_version=lost.metadata.resource_version)
    assert_unchanged("kubernetes_lifecycle_requests", recorded.requests)


def is_ready() -> NodeCondition:
    return NodeCondition(type="Ready", status="True")


async def test_csr_approves_and_denies_exactly_the_request_that_it_judged(
    kube: KubeApi, recorded: RecordedRequests
):
    approvals = ApprovalWriter(kube, observe_only=False)
    claims = claims_of(*NODES.values(), *make_metadata_events())
    for expected in ("approve", "deny"):
        request = next(case for case in CASES if case.expected == expected).request()
        event = make_csr_enriched(request, facts=FACTS["web-1"], node_uid="uid-web-1")
        verdict = decide(event, claims, POLICY).decision
        path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
        recorded.objects[f"{path}/{request.name}/approval"] = {}
        short = msgspec.structs.replace(request.spec, request=b"the request")
        await approvals.write(msgspec.structs.replace(request, spec=short), verdict, partial(always, verdict))
    assert_unchanged("kubernetes_csr_patches", [reference_words(each) for each in recorded.requests])


def always(verdict: Decision) -> Decision:
    """The same verdict, whenever it is asked for."""
    return verdict


def reference_words(request: dict[str, Any]) -> dict[str, Any]:
    """The condition's message as far as the reference has the same words."""
    *tests, write = request["body"]
    [condition] = write["value"]
    shown = condition | {"message": condition["message"].partition(":")[0]}
    return request | {"body": [*tests, write | {"value": [shown]}]}


def test_a_json_patch_is_spelled_as_go_spells_json():
    operations: list[Operation] = [{"op": "test", "path": "/x", "value": "<a> & \u2028 \u2029 ü"}]
    assert_unchanged("kubernetes_json_patch_body", json_patch_body(operations).decode())
