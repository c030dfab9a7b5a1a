"""Events of ipam: once until they say something else, in the reference's words, never in the way."""

from datetime import datetime

import pytest

from libs.common.kube.errors import Invalid, Unreachable
from libs.common.kube.event_recorder import MAX_QUEUED
from libs.common.kube.events import ObjectEvent
from services.ipam.node_event_recorder import COMPONENT, NOT_AVAILABLE, NodeEventRecorder
from tests.builders import NOW
from tests.bus_actors import run_during, wait_until


class Writer:
    def __init__(self) -> None:
        self.written: list[ObjectEvent] = []
        self.error: Exception | None = None
        self.tried = 0

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool:
        self.tried += 1
        if self.error is not None:
            raise self.error
        self.written.append(event)
        return True


@pytest.fixture
def writer() -> Writer:
    return Writer()


def events_of(writer: Writer, *everybodys: str, observe_only: bool = False) -> NodeEventRecorder:
    return NodeEventRecorder(
        writer,
        get_cluster_wide_reasons=lambda: everybodys,
        is_foreign=lambda name: name == "db-1",
        now=lambda: NOW,
        observe_only=observe_only,
    )


async def test_an_event_says_what_the_reference_says_and_why_once_until_it_is_another(writer: Writer):
    events = events_of(writer)
    async with run_during(events.run()):
        for why in ("no room", "no room", "no pool", "no room"):
            events.record("web-1", "uid-1", NOT_AVAILABLE, why)
        events.forget("uid-1")
        events.record("web-1", "uid-1", NOT_AVAILABLE, "no room")
        await wait_until(lambda: len(writer.written) == 4)
    first = writer.written[0]
    assert first.message == "Node web-1 status is now: CIDRNotAvailable: no room"
    assert (first.regarding.uid, first.reason, first.type, first.component) == (
        "uid-1", "CIDRNotAvailable", "Warning", COMPONENT,
    )  # fmt: skip


async def test_on_a_node_of_another_nothing_is_told(writer: Writer):
    events = events_of(writer)
    async with run_during(events.run()):
        events.record("db-1", "uid-2", NOT_AVAILABLE, "no room")
        events.record("web-1", "uid-1", NOT_AVAILABLE, "no room")
        await wait_until(lambda: len(writer.written) == 1)
    assert writer.written[0].regarding.name == "web-1"


async def test_what_keeps_everybody_waiting_is_told_on_no_node_and_observe_only_tells_nothing(writer: Writer):
    for events in (events_of(writer, "no networks"), events_of(writer, observe_only=True)):
        events.record("web-1", "uid-1", NOT_AVAILABLE, "no networks")
        await events.flush()
    assert writer.written == []


async def test_one_that_kubernetes_cannot_take_for_a_while_is_written_when_it_can(writer: Writer):
    events = events_of(writer)
    writer.error = Unreachable("no answer")
    async with run_during(events.run()):
        events.record("web-1", "uid-1", NOT_AVAILABLE, "no room")
        await wait_until(lambda: writer.tried >= 1)
        writer.error = None
        await wait_until(lambda: len(writer.written) == 1, "it was written in the end")


async def test_one_that_kubernetes_refuses_is_given_up_and_the_next_is_written(writer: Writer):
    events = events_of(writer)
    writer.error = Invalid("no such field", status=422)
    async with run_during(events.run()):
        events.record("web-1", "uid-1", NOT_AVAILABLE, "no room")
        await wait_until(lambda: writer.tried == 1)
        writer.error = None
        events.record("web-2", "uid-2", NOT_AVAILABLE, "no room")
        await wait_until(lambda: [event.regarding.name for event in writer.written] == ["web-2"])


async def test_more_than_can_be_told_is_bounded_and_the_rest_is_written_at_the_end(writer: Writer):
    events = events_of(writer)
    for number in range(MAX_QUEUED + 10):
        events.record(f"web-{number}", f"uid-{number}", NOT_AVAILABLE, "no room")
    await events.flush()
    assert len(writer.written) == MAX_QUEUED
