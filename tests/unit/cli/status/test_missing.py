"""`talos-ccm status` misses a service of which there is no pod, and nothing that is over."""

from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod
from cli.inside.flow_snapshot import (
    ConsumerSnapshot,
    FlowSnapshot,
    FlowUnavailable,
    LastMessage,
    StreamSnapshot,
)
from cli.status.cluster_status import ClusterStatus, build_status
from cli.status.requests import summarize_requests
from cli.status.status_evidence import StatusEvidence
from libs.common.contract.events import Leading
from libs.common.contract.signing_request import SigningRequestCondition, SigningRequestStatus
from tests.builders import NOW, STREAM_ID, make_node, make_request

SECONDS: Final = timedelta(seconds=1)
LEADING: Final = Leading(stream_id=STREAM_ID, epoch=1, holder="watcher-1")


def a_pod(component: str) -> Pod:
    labels = {"app.kubernetes.io/component": component} if component else {}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return msgspec.convert(
        {"metadata": {"name": f"ccm-{component}", "labels": labels}, "status": status}, Pod
    )


def stands(*components: str, labeler: ConsumerSnapshot | None = None) -> ClusterStatus:
    flow = FlowSnapshot(
        at=NOW,
        stream=StreamSnapshot(stream_id=STREAM_ID),
        leading=LastMessage(subject="s", published_at=NOW - 2 * SECONDS, event=LEADING),
        queues=(labeler,) if labeler else (),
    )
    return build_status(evidence(components, flow))


def evidence(components: tuple[str, ...], flow: FlowSnapshot | FlowUnavailable) -> StatusEvidence:
    lease = LeaseState(holder="watcher-1", renewed_at=NOW - 3 * SECONDS)
    return StatusEvidence(at=NOW, pods=tuple(map(a_pod, components)), lease=lease, flow=flow)


def labelers(**more: Any) -> ConsumerSnapshot:
    return ConsumerSnapshot(name="labeler-nodes", service="labeler", **more)


def test_metadata_without_a_pod_is_missed_in_every_profile():
    found = stands("nats", "watcher", "labeler", "csr")
    why = "no pod exists; without it, no other service receives events"
    assert found.problems == (f"metadata: {why}",)
    assert found.exit_status == 1
    assert stands("nats", "watcher", "metadata", "csr").problems == ()


def test_the_one_process_that_is_everything_misses_no_pod():
    alone = build_status(evidence(("",), FlowUnavailable(reason="one process", is_all_in_one=True)))
    assert (alone.problems, [one.name for one in alone.services]) == ((), ["all-in-one"])


def test_a_labeler_that_is_scaled_to_nothing_is_missed_once_it_has_worked():
    without = ("nats", "watcher", "metadata", "csr")
    worked = labelers(pending=1, delivered_at=NOW - 300 * SECONDS)
    why = "consumer labeler-nodes: labeler used this consumer before and is not running"
    assert stands(*without, labeler=worked).problems == (why,)
    assert stands(*without, labeler=labelers(pending=9)).problems == (), "it was never installed: csr-only"


@pytest.mark.parametrize(("node", "wrong"), [("web-1", True), ("gone-1", False)])
@pytest.mark.parametrize("answer", ["Denied", "Failed", "Approved"])
def test_what_was_answered_to_a_node_that_is_gone_is_nobodys_loss(node: str, wrong: bool, answer: str):
    request = make_request("csr-1", node=node)
    old = msgspec.structs.replace(request.metadata, creation_timestamp=NOW - 300 * SECONDS)
    answered = SigningRequestStatus(conditions=(SigningRequestCondition(type=answer),))
    request = msgspec.structs.replace(request, metadata=old, status=answered)
    [one] = summarize_requests([request], None, NOW, {"web-1"}).open
    assert one.is_wrong is wrong
    found = evidence(("nats", "watcher", "metadata"), FlowUnavailable(reason="no right"))
    told = build_status(
        msgspec.structs.replace(found, requests=(request,), nodes=(make_node("web-1", taints=()),))
    )
    assert ("CSRs: 1 nodes without" in " ".join(told.problems)) is wrong
