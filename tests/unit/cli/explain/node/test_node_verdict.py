"""What `talos-ccm explain node` finds, and in which order. In a real run: test_stuck_nodes."""

from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from cli.cluster.certificate_signing_request import CertificateSigningRequest, CsrCondition, CsrStatus
from cli.cluster.described_node import DescribedNode
from cli.cluster.kube_events import EventSummary
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod
from cli.explain.node.node_context import NodeContext
from cli.explain.node.node_evidence import NodeEvidence
from cli.explain.node.node_explanation import explain_node_evidence
from cli.explain.node.node_verdict import NodeVerdict
from cli.inside import flow_snapshot
from libs.common.contract.events import Event, Leading, NodeObserved, ObservationOrder
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeAddress, NodeCondition, Taint
from libs.common.contract.subjects import subject_of
from services.lifecycle.decide import DeletionPolicy
from tests.builders import NOW, make_facts, make_node, make_node_enriched
from tests.csr_actors import make_serving_request
from tests.node_plans import set_ownership_record

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
READY: Final = NodeCondition(type="Ready", status="True")
LEADING: Final = Leading(stream_id="1", epoch=1, holder="watcher-1")
RELEASED: Final = LeaseState(holder="", renewed_at=NOW)
LED: Final = LeaseState(holder="watcher-1", renewed_at=NOW - timedelta(seconds=3))


def aged(node: Node, age: timedelta = 10 * MINUTE, **metadata: Any) -> Node:
    changed = {"creation_timestamp": NOW - age} | metadata
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, **changed))


WAITS: Final = aged(make_node(conditions=(READY,)))
DONE: Final = aged(make_node(conditions=(READY,), taints=(), provider_id="talos://metal/10.0.0.5"))
BLOCKED: Final = NodeCondition(
    type=BLOCKED_CONDITION, status="True", reason="TalosTimeout", message="PlatformMetadata: no answer"
)


def word(event: Event) -> flow_snapshot.LastMessage:
    return flow_snapshot.LastMessage(subject=subject_of(event), published_at=NOW, event=event)


def observed(node: Node, ago: timedelta = MINUTE) -> NodeObserved:
    order = ObservationOrder(epoch=1, resource_version=7)
    return NodeObserved(stream_id="1", order=order, node=node, observed_at=NOW - ago)


def flow(
    node: Node | None = None, *, enriched_by: Event | None = None, **stream: int
) -> flow_snapshot.FlowSnapshot:
    found = flow_snapshot.ObjectMessages(
        object=flow_snapshot.FlowObject("node", "web-1"),
        observed=word(observed(node)) if node else None,
        enriched=word(enriched_by) if enriched_by else None,
    )
    seen = flow_snapshot.StreamSnapshot(stream_id="1", **stream)
    return flow_snapshot.FlowSnapshot(at=NOW, stream=seen, leading=word(LEADING), objects=(found,))


def filed(*conditions: str, age: timedelta = 2 * MINUTE) -> CertificateSigningRequest:
    request = make_serving_request("csr-1", node="web-1", age_seconds=int(age.total_seconds()))
    held = tuple(CsrCondition(type=kind, reason=kind, message=f"{kind} so") for kind in conditions)
    return CertificateSigningRequest(
        metadata=request.metadata, spec=request.spec, status=CsrStatus(conditions=held)
    )


def judged(node: Node, **evidence: Any) -> NodeVerdict:
    return explain_node_evidence(
        NodeEvidence(node=node, nodes=(node,), at=NOW, **evidence), DeletionPolicy()
    ).verdict


def still_tainted(ready_for: timedelta) -> Node:
    since = (NOW - ready_for).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = NodeCondition(type="Ready", status="True", last_transition_time=since)
    taints = (Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"),)
    return make_node(conditions=(ready,), taints=taints, provider_id="talos://metal/10.0.0.5")


def pod(service: str, *, ready: bool) -> Pod:
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [
            {"name": service, "state": {} if ready else {"waiting": {"reason": "CrashLoopBackOff"}}}
        ],
    }
    labels = {"app.kubernetes.io/component": service}
    return msgspec.convert({"metadata": {"name": f"ccm-{service}", "labels": labels}, "status": status}, Pod)


NOT_OURS: Final = aged(make_node(conditions=(READY,), provider_id="aws:///z/i-1"))
OF_AWS: Final = set_ownership_record(
    aged(make_node(conditions=(READY,), taints=(), provider_id="aws:///z/i-1")), '{"v":1}'
)
SILENT: Final = MachineFault(kind="timeout", step="PlatformMetadata", endpoint="cp-1", message="no answer")
ANSWERS: Final = DescribedNode(node=WAITS, facts=make_facts(node_name="web-1"))
CASES: Final[dict[str, tuple[list[str], NodeVerdict]]] = {
    "no watcher leads": (
        ["no-leader"],
        judged(WAITS, machine_result=ANSWERS, context=NodeContext(lease=RELEASED)),
    ),
    "a watcher leads according to its messages": (
        ["watcher-silent"],
        judged(WAITS, machine_result=ANSWERS, flow=flow(), context=NodeContext(lease=RELEASED)),
    ),
    "no stream": (
        ["no-stream"],
        judged(WAITS, flow=flow_snapshot.FlowSnapshot(at=NOW), context=NodeContext(lease=LED)),
    ),
    "a full stream": (["stream-full"], judged(WAITS, flow=flow(WAITS, bytes=995, max_bytes=1000))),
    "NATS is silent": (
        ["nats-silent"],
        judged(WAITS, flow=flow_snapshot.FlowUnavailable(reason="NATS does not answer: refused")),
    ),
    "metadata is silent": (["metadata-silent"], judged(WAITS, flow=flow(WAITS))),
    "the labeler is silent": (
        ["labeler-silent"],
        judged(
            WAITS,
            machine_result=ANSWERS,
            flow=flow(
                WAITS,
                enriched_by=msgspec.structs.replace(
                    make_node_enriched(WAITS, make_facts(node_name="web-1")), enriched_at=NOW - MINUTE
                ),
            ),
        ),
    ),
    "only the Node itself says it": (
        ["talos-silent"],
        judged(
            aged(make_node(conditions=(READY, BLOCKED))),
            flow=flow_snapshot.FlowUnavailable(reason="no right"),
            not_queried_reason="none",
        ),
    ),
    "no service has published anything": (
        ["not-told"],
        judged(WAITS, flow=flow_snapshot.FlowUnavailable(reason="no right"), not_queried_reason="none"),
    ),
    "a pod crashes": (
        ["metadata-silent"],
        judged(
            WAITS,
            flow=flow_snapshot.FlowUnavailable(reason="no right"),
            context=NodeContext(pods=(pod("metadata", ready=False),)),
        ),
    ),
    "it has just joined": (
        [],
        judged(aged(WAITS, timedelta(seconds=2)), machine_result=ANSWERS, flow=flow()),
    ),
    "silent, and once written by us": (["talos-silent"], judged(OF_AWS, machine_result=SILENT)),
    "silent, and never written by us": (["of-whom-is-not-known"], judged(NOT_OURS, machine_result=SILENT)),
    "another's by its providerID": (["of-another-controller"], judged(NOT_OURS, machine_result=ANSWERS)),
    "being deleted": (["being-deleted"], judged(aged(DONE, deletion_timestamp=NOW - MINUTE))),
    "a request that waits": (["certificate-waits"], judged(DONE, context=NodeContext(request=filed()))),
    "a request that was just filed": (
        [],
        judged(DONE, context=NodeContext(request=filed(age=timedelta(seconds=3)))),
    ),
    "a request that is not signed": (
        ["certificate-not-signed"],
        judged(DONE, context=NodeContext(request=filed("Approved"))),
    ),
    "a file with mistakes": (
        ["cloud-config-refused"],
        judged(
            DONE,
            context=NodeContext(
                cluster_events=(EventSummary(reason="CloudConfigRejected", message="x", at=NOW),)
            ),
        ),
    ),
    "a file that was corrected": (
        [],
        judged(
            DONE,
            context=NodeContext(
                cluster_events=(
                    EventSummary(reason="CloudConfigAccepted", message="y", at=NOW),
                    EventSummary(reason="CloudConfigRejected", message="x", at=NOW - MINUTE),
                )
            ),
        ),
    ),
    "ready, and still with the taint": (["not-ready-taint"], judged(aged(still_tainted(10 * MINUTE)))),
    "ready since a moment": ([], judged(aged(still_tainted(SECOND)))),
    "no pod CIDR, by its Event": (
        ["no-pod-cidr"],
        judged(
            DONE,
            context=NodeContext(events=(EventSummary(reason="CIDRNotAvailable", message="none", at=NOW),)),
        ),
    ),
}


@pytest.mark.parametrize("ready_for", [SECOND, 10 * MINUTE])
def test_no_node_is_well_beside_its_not_ready_taint(ready_for: timedelta):
    assert judged(DONE).state == "well"
    assert judged(aged(still_tainted(ready_for))).state in ("moving", "stuck")


@pytest.mark.parametrize("name", CASES)
def test_this_is_found_and_nothing_else(name: str):
    faults, verdict = CASES[name]
    assert [finding.fault for finding in verdict.findings] == faults


def test_what_is_wrong_for_everybody_stands_before_what_was_heard_last():
    both = judged(
        aged(make_node(conditions=(READY, BLOCKED))),
        flow=flow_snapshot.FlowUnavailable(reason="NATS does not answer: refused"),
        context=NodeContext(lease=RELEASED),
    )
    assert [finding.fault for finding in both.findings] == ["no-leader", "nats-silent"]


def test_a_rejected_file_is_corrected_where_helm_keeps_it_and_a_question_ends_its_sentence():
    rejected = EventSummary(reason="CloudConfigRejected", message="no key nam; did you mean name?", at=NOW)
    (finding,) = judged(DONE, context=NodeContext(cluster_events=(rejected,))).findings
    assert finding.cause.endswith("did you mean name?")
    assert finding.fix.endswith("Correct config and transformations in the chart's values, then upgrade.")


def test_a_pod_that_is_not_ready_is_named_with_its_reason_and_one_that_lacks_too():
    pods = (pod("watcher", ready=False), pod("csr", ready=True))
    down = judged(WAITS, context=NodeContext(lease=RELEASED, pods=pods))
    assert "pod ccm-watcher is not ready: watcher: CrashLoopBackOff" in down.findings[0].cause
    silent = judged(WAITS, flow=flow(WAITS), context=NodeContext(pods=pods))
    assert "metadata has no pod" in silent.findings[0].cause


def test_no_command_that_is_told_holds_what_a_node_has_made_up():
    addresses = (NodeAddress(type="InternalIP", address="10.0.0.5; reboot"),)
    node = aged(make_node(conditions=(NodeCondition(type="Ready", status="False"),), addresses=addresses))
    request = filed("Denied")
    named = msgspec.structs.replace(
        request, metadata=msgspec.structs.replace(request.metadata, name="csr $(reboot)")
    )
    verdict = judged(node, machine_result=ANSWERS, flow=flow(), context=NodeContext(request=named, lease=LED))
    told = " ".join(finding.fix for finding in verdict.findings)
    assert "talosctl -n 10.0.0.5 service kubelet" in told
    assert "talos-ccm explain csr 'csr $(reboot)'. Then" in told


def test_a_lease_counts_for_as_long_as_it_says():
    late = LeaseState(holder="watcher-1", renewed_at=NOW - MINUTE, duration_seconds=15)
    assert late.why_not_held(NOW) == "was last renewed 60 s ago by watcher-1, for 15 s"
    assert LED.why_not_held(NOW) == ""
