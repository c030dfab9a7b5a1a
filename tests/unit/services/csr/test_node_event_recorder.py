"""Events on Nodes about their requests: each one once, and none for Nodes that do not exist."""

import asyncio
from datetime import datetime, timedelta

import pytest

from libs.common.contract.node import Node
from libs.common.kube import event_recorder
from libs.common.kube.errors import Forbidden, Invalid, KubeError, Unreachable
from libs.common.kube.events import ObjectEvent, event_name
from services.csr.node_event_recorder import MAX_RIVALS, NodeEventRecorder
from tests.builders import NOW, make_node, make_request
from tests.bus_actors import run_during, wait_until


class Writer:
    """Keeps what is written, under the names that it would have."""

    def __init__(self) -> None:
        self.events: list[ObjectEvent] = []
        self.names: list[str] = []
        self.failing: KubeError | None = None
        self.tried = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool:
        await self.gate.wait()
        self.tried += 1
        if self.failing is not None:
            raise self.failing
        self.events.append(event)
        self.names.append(event_name(event, now))
        return True


NODES = {name: make_node(name, uid=f"uid-of-{name}") for name in ("web-1", "web-2")}


def events_on(
    writer: Writer, nodes: dict[str, Node] = NODES, *, later: float = 0.0, **more: bool
) -> NodeEventRecorder:
    observe_only = more.get("observe_only", False)
    now = NOW + timedelta(seconds=later)
    return NodeEventRecorder(writer, nodes.get, now=lambda: now, observe_only=observe_only)


async def test_a_denial_is_told_again_only_for_another_reason_or_after_an_approval():
    writer = Writer()
    events = events_on(writer)
    for why in ("names", "names", "addresses"):
        events.record_denied(make_request(), why, f"because of {why}")
    events.forget_reasons(make_request())
    events.record_denied(make_request(), "addresses", "because of addresses")
    await events.flush()
    assert [event.message for event in writer.events] == [
        "csr-1: because of names",
        "csr-1: because of addresses",
        "csr-1: because of addresses",
    ]
    assert {(event.reason, event.type) for event in writer.events} == {("CSRDenied", "Warning")}


async def test_a_wait_is_told_on_every_node_that_has_a_part_in_it_under_one_name_by_all_replicas():
    first, second = Writer(), Writer()
    for writer, later in ((first, 30.0), (second, 95.0)):
        events = events_on(writer, later=later)
        events.record_waiting(make_request(), "addresses", "10.0.0.5 is claimed twice", ("web-1", "web-2"))
        await events.flush()
    assert [event.regarding.name for event in first.events] == ["web-1", "web-2"]
    assert first.names == second.names
    assert len(set(first.names)) == 2


async def test_what_everybody_claims_is_not_told_on_everybody():
    # a Service's address is on every machine (kube-proxy in IPVS mode): one kubelet that asks for it again
    # and again must not cost an Event on each Node of the cluster
    nodes = {f"web-{n}": make_node(f"web-{n}", uid=f"uid-{n}") for n in range(1, 1001)}
    writer = Writer()
    events = events_on(writer, nodes)
    for why in ("rivals", "addresses", "rivals"):
        events.record_waiting(make_request(), why, "10.96.0.1 is claimed by all", tuple(sorted(nodes)))
    await events.flush()
    told = [event.regarding.name for event in writer.events]
    assert len(told) == 3 * (1 + MAX_RIVALS)
    assert told.count("web-1") == 3


async def test_nobody_is_told_where_there_is_no_node_and_nothing_in_observe_only_mode():
    writer = Writer()
    absent, observing = events_on(writer, {}), events_on(writer, observe_only=True)
    for events in (absent, observing):
        events.record_denied(make_request(), "names", "because")
        await events.flush()
    assert writer.events == []


async def test_what_the_api_server_cannot_take_for_a_while_is_told_when_it_can():
    writer = Writer()
    events = events_on(writer)
    async with run_during(events.run()):
        writer.failing = Unreachable("no answer")
        events.record_denied(make_request(), "names", "because")
        events.record_denied(make_request(node="web-2"), "names", "because")
        await wait_until(lambda: writer.tried >= 3, "both were tried")
        writer.failing = None
        await wait_until(lambda: len(writer.events) == 2, "both Events")
    assert len(set(writer.names)) == 2


async def test_what_is_never_taken_is_given_up_and_ends_nothing(monkeypatch: pytest.MonkeyPatch):
    writer = Writer()
    events = events_on(writer)
    async with run_during(events.run()):
        writer.failing = Invalid("no such field", status=422)
        events.record_denied(make_request(), "names", "because")
        await wait_until(lambda: not events._queue._waiting and writer.tried == 1, "it was refused for good")
        monkeypatch.setattr(event_recorder, "EVENT_RETRY_SECONDS", 0.0)
        writer.failing = Forbidden("no right to create events", status=403)
        events.record_denied(make_request(), "addresses", "because")
        await wait_until(
            lambda: not events._queue._waiting and writer.tried == 2, "it was tried for long enough"
        )
        writer.failing = None
        events.record_denied(make_request(), "usages", "because")
        await wait_until(lambda: len(writer.events) == 1, "the next one is written")


async def test_what_is_left_at_the_end_is_told_if_that_takes_but_a_moment(monkeypatch: pytest.MonkeyPatch):
    writer = Writer()
    events = events_on(writer)
    writer.gate.clear()
    async with run_during(events.run()):
        events.record_denied(make_request(), "names", "because")
        await asyncio.sleep(0)
    writer.gate.set()
    await events.flush()
    assert len(writer.events) == 1
    writer.gate.clear()
    monkeypatch.setattr(event_recorder, "FLUSH_SECONDS", 0.05)
    events.record_denied(make_request(), "addresses", "because")
    await events.flush()
    assert len(writer.events) == 1


async def test_what_waits_to_be_told_goes_unsaid_on_a_node_that_has_become_anothers():
    """The API server took no Events for a while, and the file has given the Node away since."""
    writer, foreign = Writer(), set[str]()
    events = NodeEventRecorder(
        writer, NODES.get, is_foreign=foreign.__contains__, now=lambda: NOW, observe_only=False
    )
    events.record_denied(make_request(node="web-1"), "names", "because")
    events.record_denied(make_request(node="web-2"), "names", "because")
    foreign.add("web-1")
    await events.flush()
    assert [event.regarding.name for event in writer.events] == ["web-2"]
