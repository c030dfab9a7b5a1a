"""Events on Nodes about their requests: none for Nodes that do not exist, and few for many rivals."""

from datetime import timedelta

from libs.common.contract.node import Node
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import event_name
from services.csr.core.flow_state import WaitingRequest
from services.csr.node_events import COMPONENT, MAX_RIVALS, NodeEvents
from tests.builders import NOW, make_node, make_request
from tests.in_memory_api import InMemoryEvents

NODES = {name: make_node(name, uid=f"uid-of-{name}") for name in ("web-1", "web-2")}


def events_on(kube: InMemoryEvents, nodes: dict[str, Node] = NODES, *, later: float = 0.0) -> NodeEvents:
    now = NOW + timedelta(seconds=later)
    return NodeEvents(EventRecorder(kube, component=COMPONENT, now=lambda: now), nodes.get)


def waiting(reason: str, *rivals: str) -> WaitingRequest:
    return WaitingRequest(
        name="csr-1",
        uid="uid-1",
        requester="web-1",
        reason=reason,
        message="10.0.0.5 is claimed twice",
        nodes=frozenset(rivals),
        rivals=rivals,
    )


async def test_a_denial_is_told_again_only_for_another_reason_or_after_an_approval():
    kube = InMemoryEvents()
    events = events_on(kube)
    for why in ("names", "names", "addresses"):
        events.record_denied(make_request(), why, f"because of {why}")
    events.forget_reasons("web-1")
    events.record_denied(make_request(), "names", "because of other names")
    events.record_denied(make_request(node="unknown"), "names", "because")
    assert [queued.event.message for queued in events.recorder._waiting] == [
        "csr-1: because of names",
        "csr-1: because of addresses",
        "csr-1: because of other names",
    ]
    await events.recorder.flush()
    assert {(event.reason, event.type) for event in kube.events} == {("CSRDenied", "Warning")}


async def test_a_wait_is_told_on_every_node_that_has_a_part_in_it_under_one_name_by_all_replicas():
    kube = InMemoryEvents()
    for later in (30.0, 95.0):
        events = events_on(kube, later=later)
        events.record_waiting(make_request(), waiting("addresses", "web-1", "web-2"))
        await events.recorder.flush()
    assert [event.regarding.name for event in kube.events] == ["web-1", "web-2"]
    assert len({event_name(event, NOW) for event in kube.events}) == 2


async def test_what_everybody_claims_is_not_told_on_everybody():
    # a Service's address is on every machine (kube-proxy in IPVS mode): one kubelet that asks for it again
    # and again must not cost an Event on each Node of the cluster
    nodes = {f"web-{n}": make_node(f"web-{n}", uid=f"uid-{n}") for n in range(1, 1001)}
    kube = InMemoryEvents()
    events = events_on(kube, nodes)
    for why in ("rivals", "addresses"):
        events.record_waiting(make_request(), waiting(why, *sorted(nodes)))
    await events.recorder.flush()
    told = [event.regarding.name for event in kube.events]
    assert len(told) == 2 * (1 + MAX_RIVALS)
    assert told.count("web-1") == 2
