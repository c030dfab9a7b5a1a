"""The JSON from the watcher's pod is readable by other versions; errors name the pod."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from cli.cluster.pod_commands import choose_pod, query_flow
from cli.cluster.pods import Pod
from cli.cluster.query import ClusterQuery, resolve_nats_access
from cli.cluster.unavailable import Unavailable
from cli.inside import flow_snapshot
from libs.common.contract.services import READER_USER, SERVICES
from tests.builders import NOW, make_leading, make_node, make_node_observed

LEADING = flow_snapshot.LastMessage(
    subject="l", published_at=NOW - timedelta(seconds=3), event=make_leading()
)


def a_queue(service: str, **more: Any) -> flow_snapshot.ConsumerSnapshot:
    return flow_snapshot.ConsumerSnapshot(name=f"{service}-x", service=service, **more)


def a_pod(name: str, *, component: str = "watcher", release: str = "ccm", **status: Any) -> Pod:
    labels = {
        "app.kubernetes.io/name": "talos-cloud-controller-manager",
        "app.kubernetes.io/instance": release,
    } | ({"app.kubernetes.io/component": component} if component else {})
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "status": status}, Pod)


READY: dict[str, Any] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def test_what_is_seen_comes_back_as_it_was():
    word = flow_snapshot.LastMessage(subject="s", published_at=NOW, event=make_node_observed(make_node()))
    seen = flow_snapshot.FlowSnapshot(
        at=NOW, leading=LEADING, dead=(word,), queues=(a_queue("csr", pending=3),)
    )
    assert flow_snapshot.FLOW_DECODER.decode(msgspec.json.encode(seen)) == seen
    newer = msgspec.json.encode(seen).replace(b'"at"', b'"shoe_size":43,"at"', 1)
    assert flow_snapshot.FLOW_DECODER.decode(newer) == seen
    unknown = flow_snapshot.FlowUnavailable(reason="no NATS", is_all_in_one=True)
    assert flow_snapshot.FLOW_DECODER.decode(msgspec.json.encode(unknown)) == unknown


def test_a_time_without_an_offset_is_refused_where_it_is_read():
    """A time without a zone could not be compared later."""
    said: dict[str, Any] = {"type": "FlowSeen.v1", "at": "2026-01-01T00:00:00Z"}
    assert isinstance(
        flow_snapshot.FLOW_DECODER.decode(msgspec.json.encode(said)), flow_snapshot.FlowSnapshot
    )
    queue = {"name": "q", "service": "s", "delivered_at": "2026-01-01T00:00:00"}
    for more in ({"at": "2026-01-01T00:00:00"}, {"queues": [queue]}):
        with pytest.raises(msgspec.ValidationError):
            flow_snapshot.FLOW_DECODER.decode(msgspec.json.encode(said | more))


@pytest.mark.parametrize(
    ("queue", "here"),
    [
        ({"waiting": 1}, True),
        ({}, False),
        ({"unacknowledged": 1}, None),
        ({"exists": False}, False),
    ],
)
def test_a_service_is_there_if_it_asks_for_more(queue: dict[str, Any], here: bool | None):
    seen = flow_snapshot.FlowSnapshot(
        at=NOW,
        stream=flow_snapshot.StreamSnapshot(created="1"),
        queues=(a_queue("labeler", **queue),),
        leading=LEADING,
    )
    found = {one.service: one.is_present for one in seen.services}
    assert found["labeler"] is here
    assert found["watcher"] is True
    assert found["metadata"] is None
    assert list(found) == [wiring.service for wiring in SERVICES]


def test_nats_is_found_where_the_watchers_pod_names_it():
    assert resolve_nats_access(ClusterQuery(), {}) is None
    environment = {"NATS_URL": "tls://a:4222,tls://b:4222", "NATS_NKEY_FILE": "/k", "NATS_CA_FILE": "/c"}
    access = resolve_nats_access(ClusterQuery(), environment)
    assert access is not None
    assert (access.servers, access.service) == (("tls://a:4222", "tls://b:4222"), READER_USER)
    assert (str(access.nkey_seed_file), str(access.tls_ca_file)) == ("/k", "/c")
    told = resolve_nats_access(ClusterQuery(nats_servers=("nats://c",)), environment)
    assert told is not None
    assert told.servers == ("nats://c",)


# ---- which pod


def test_a_ready_pod_is_chosen():
    pod = a_pod("w-0", **READY)
    leaving = msgspec.structs.replace(pod.metadata, deletion_timestamp=NOW)
    gone = msgspec.structs.replace(pod, metadata=leaving)
    pods = (gone, a_pod("w-1", phase="Pending"), a_pod("w-2", **READY), a_pod("w-3", **READY))
    assert choose_pod(pods, "watcher", "kube-system", "") == "w-2"


IMAGE: Any = {"name": "watcher", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
PENDING: Any = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
FORBIDDEN = Unavailable(reason="list pods: 403", required_permission="list pods --namespace kube-system")


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        (
            (a_pod("w-1", phase="Pending", containerStatuses=[IMAGE]),),
            "no pod of watcher is ready in namespace kube-system: w-1 watcher: ImagePullBackOff",
        ),
        ((a_pod("w-1", phase="Pending", conditions=[PENDING]),), "w-1 Unschedulable: 0/3 nodes"),
        ((), "--namespace and --release"),
        ((a_pod("l-1", component="labeler", **READY),), "--namespace and --release"),
        (
            (a_pod("w-1", release="a", **READY), a_pod("w-2", release="b", **READY)),
            "several releases (a, b): select one with --release",
        ),
        ((a_pod("ccm-x", component="", **READY),), "all services run in one process"),
        (FORBIDDEN, "403: this requires permission to list pods in kube-system"),
        (Unavailable(reason="timeout"), "the Kubernetes API request failed: timeout"),
    ],
)
async def test_why_there_is_none_is_said(pods: tuple[Pod, ...] | Unavailable, why: str):
    kube: Any = None  # no request is sent
    flow = await query_flow(kube, ClusterQuery(), pods)
    assert isinstance(flow, flow_snapshot.FlowUnavailable)
    assert why in flow.reason
    assert flow.is_all_in_one == ("one process" in why)
