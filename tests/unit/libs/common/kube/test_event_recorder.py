"""The recorder: each cause once, after the writes of Nodes, until Kubernetes accepts it."""

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Any

import pytest

from libs.common.kube import event_recorder
from libs.common.kube.errors import Forbidden, Invalid, KubeError, Unreachable
from libs.common.kube.event_recorder import IDLE_SECONDS, LATEST_ONLY, EventLimits, EventRecorder
from libs.common.kube.events import ObjectEvent, ObjectReference, node_reference
from tests.builders import NOW
from tests.bus_actors import run_during, wait_until

WEB = node_reference("web-1", "uid-1")
BUSY = IDLE_SECONDS * 0.99


class Writer:
    """Writes Events when the test allows it."""

    def __init__(self) -> None:
        self.written: list[ObjectEvent] = []
        self.times: list[datetime] = []
        self.tried = 0
        self.at_once = 0
        self.most_at_once = 0
        self.failing: KubeError | None = None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.may_go_on.wait()
            self.tried += 1
            if self.failing is not None:
                raise self.failing
            self.written.append(event)
            self.times.append(now)
        finally:
            self.at_once -= 1

    def names(self) -> list[str]:
        return [event.regarding.name for event in self.written]

    def causes(self) -> list[str]:
        return [event.discriminator for event in self.written]


@pytest.fixture
def writer() -> Writer:
    return Writer()


def make_recorder(writer: Writer, **more: Any) -> EventRecorder:
    return EventRecorder(writer, component="talos-ccm", now=lambda: NOW, **more)


def reference(name: str) -> ObjectReference:
    return node_reference(name, f"uid of {name}")


# ---- each cause once


async def test_an_event_is_recorded_once_until_its_cause_changes_or_it_is_forgotten(writer: Writer):
    recorder = make_recorder(writer)
    for cause in ("a", "a", "b", "b", "a"):
        recorder.record_once(WEB, "Denied", "text", cause=cause)
    recorder.forget("uid-1", "Other")
    recorder.record_once(WEB, "Denied", "text", cause="a")
    recorder.forget("uid-1", "Denied")
    recorder.record_once(WEB, "Denied", "text", cause="a")
    recorder.forget("uid-1")
    recorder.record_once(WEB, "Denied", "text", cause="a")
    recorder.record_once(reference("web-2"), "Denied", "text", cause="a")
    await recorder.flush()
    assert writer.causes() == ["a", "b", "a", "a", "a", "a"]


async def test_causes_that_alternate_are_recorded_once_each_up_to_the_limit(writer: Writer):
    recorder = make_recorder(writer, limits=EventLimits(causes=2))
    for cause in ("a", "b", "a", "b", "c", "a"):
        recorder.record_once(WEB, "LabelSkipped", cause)
    await recorder.flush()
    assert writer.causes() == ["a", "b", "c", "a"]


async def test_a_cause_that_new_rules_end_is_recorded_again_if_it_returns(writer: Writer):
    recorder = make_recorder(writer, limits=EventLimits(causes=16))

    def plan(*causes: str) -> None:
        recorder.forget_ended("uid-1", {("LabelSkipped", cause) for cause in causes})
        for cause in causes:
            recorder.record_once(WEB, "LabelSkipped", cause)

    plan("stays", "ends")
    plan("stays")
    plan("stays", "ends")
    recorder.on_rules_changed()
    plan("stays")
    plan("stays", "ends")
    await recorder.flush()
    assert writer.causes() == ["stays", "ends", "ends"]


async def test_an_event_of_another_controllers_object_is_neither_written_nor_remembered(writer: Writer):
    foreign = {"web-1"}
    recorder = make_recorder(writer, is_foreign=foreign.__contains__)
    recorder.record_once(WEB, "Denied", "text")
    recorder.record(WEB, "Synced", "text")
    foreign.clear()
    recorder.record_once(WEB, "Denied", "text")
    recorder.record_once(reference("web-2"), "Denied", "text")
    foreign.add("web-2")  # while its Event waits
    await recorder.flush()
    assert [(event.regarding.name, event.reason) for event in writer.written] == [
        ("web-1", "Synced"),
        ("web-1", "Denied"),
    ]


async def test_observe_only_records_nothing(writer: Writer):
    recorder = make_recorder(writer, observe_only=True)
    recorder.record_once(WEB, "Denied", "text")
    recorder.record(WEB, "Synced", "text")
    await recorder.flush()
    assert writer.tried == 0


# ---- after the writes of Nodes


async def test_nobody_waits_for_an_event_and_it_has_the_time_of_its_record(writer: Writer):
    recorder = make_recorder(writer)
    writer.may_go_on.clear()
    async with run_during(recorder.run()):
        for name in ("a", "b", "c"):
            recorder.record(reference(name), "Denied", "text", at=NOW - timedelta(hours=1))
        await wait_until(lambda: writer.at_once == 1, "an Event is being written")
        writer.may_go_on.set()
        await wait_until(lambda: len(writer.written) == 3, "three Events")
    assert writer.most_at_once == 1
    assert writer.times == [NOW - timedelta(hours=1)] * 3
    assert writer.names() == ["a", "b", "c"]


async def test_while_nodes_are_written_an_event_waits_and_then_goes_alone(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
):
    looks = 0

    def idle_seconds() -> float:
        nonlocal looks
        looks += 1
        return BUSY

    recorder = make_recorder(writer, idle_seconds=idle_seconds)
    async with run_during(recorder.run()):
        for name in ("a", "b"):
            recorder.record(reference(name), "Synced", "text")
        await wait_until(lambda: looks >= 3, "it has looked for an idle moment")
        assert writer.tried == 0
        monkeypatch.setattr(event_recorder, "MAX_DELAY_SECONDS", 0.0)
        await wait_until(lambda: len(writer.written) == 2, "the Events")
    assert writer.most_at_once == 1


async def test_events_go_side_by_side_as_soon_as_no_node_is_written(writer: Writer):
    idle = BUSY
    recorder = make_recorder(writer, idle_seconds=lambda: idle)
    writer.may_go_on.clear()
    async with run_during(recorder.run()):
        for number in range(10):
            recorder.record(reference(f"web-{number}"), "Synced", "text")
        idle = IDLE_SECONDS
        await wait_until(lambda: writer.at_once == 4, "four at once")
        writer.may_go_on.set()
        await wait_until(lambda: len(writer.written) == 10, "all Events")


# ---- until Kubernetes accepts it


async def test_an_event_is_retried_until_kubernetes_accepts_it(writer: Writer):
    recorder = make_recorder(writer)
    async with run_during(recorder.run()):
        writer.failing = Unreachable("no answer")
        for name in ("a", "b"):
            recorder.record(reference(name), "Denied", "text")
        await wait_until(lambda: writer.tried >= 2, "two tries")
        writer.failing = None
        await wait_until(lambda: sorted(writer.names()) == ["a", "b"], "both Events")


async def test_a_rejected_event_is_dropped_and_the_next_is_written(writer: Writer):
    recorder = make_recorder(writer)
    async with run_during(recorder.run()):
        writer.failing = Invalid("no such field", status=422)
        recorder.record_once(WEB, "Denied", "text")
        await wait_until(lambda: writer.tried == 1, "one try")
        writer.failing = None
        recorder.record_once(WEB, "Denied", "text")  # it would be rejected again
        recorder.record_once(WEB, "Denied", "other")
        await wait_until(lambda: writer.causes() == ["other"], "the next one")


async def test_an_event_that_is_given_up_is_recorded_again(writer: Writer):
    recorder = make_recorder(writer, limits=EventLimits(retry_seconds=0.0))
    async with run_during(recorder.run()):
        writer.failing = Forbidden("no right to create events", status=403)
        recorder.record_once(WEB, "Denied", "text")
        await wait_until(lambda: writer.tried == 1, "one try")
        writer.failing = None
        recorder.record_once(WEB, "Denied", "text")
        await wait_until(lambda: len(writer.written) == 1, "the Event")


async def test_of_the_latest_only_a_newer_event_replaces_one_that_waits_or_fails(writer: Writer):
    recorder = make_recorder(writer, limits=LATEST_ONLY)
    writer.failing = Unreachable("no answer")
    writer.may_go_on.clear()
    async with run_during(recorder.run()):
        recorder.record(WEB, "Rejected", "one")
        await wait_until(lambda: writer.at_once == 1, "the first is being written")
        recorder.record(WEB, "Rejected", "two")
        recorder.record(WEB, "Accepted", "three")
        writer.may_go_on.set()
        await wait_until(lambda: writer.tried >= 1, "it has failed")
        writer.failing = None
        await wait_until(lambda: len(writer.written) >= 1, "the latest")
    assert [event.message for event in writer.written] == ["three"]


async def test_too_many_events_drop_the_oldest_which_may_be_recorded_again(
    writer: Writer, caplog: pytest.LogCaptureFixture
):
    recorder = make_recorder(writer, limits=EventLimits(queued=2))
    for name in ("a", "b", "c"):
        recorder.record_once(reference(name), "Denied", "text")
    await recorder.flush()
    recorder.record_once(reference("a"), "Denied", "text")
    await recorder.flush()
    assert writer.names() == ["b", "c", "a"]
    assert [(line.message, line.__dict__["node"]) for line in caplog.records] == [("Event dropped", "a")]


async def test_at_the_end_an_interrupted_event_is_written_and_the_others_side_by_side(writer: Writer):
    recorder = make_recorder(writer, idle_seconds=lambda: IDLE_SECONDS)
    writer.may_go_on.clear()
    async with run_during(recorder.run()):
        for number in range(40):
            recorder.record(reference(f"web-{number}"), "Synced", "text")
        await wait_until(lambda: writer.at_once == 4, "Events are being written")
    ending = asyncio.create_task(recorder.flush())
    await wait_until(lambda: writer.at_once == 16, "sixteen at once")
    writer.may_go_on.set()
    await ending
    assert len(set(writer.names())) == len(writer.written) == 40


async def test_the_end_does_not_wait_for_long_and_the_log_has_the_count(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(event_recorder, "FLUSH_SECONDS", 0.01)
    recorder = make_recorder(writer)
    writer.may_go_on.clear()
    recorder.record(WEB, "Synced", "text")
    with caplog.at_level(logging.WARNING):
        await recorder.flush()
    [line] = caplog.records
    assert (line.getMessage(), line.__dict__["count"]) == ("Events dropped: process ends", 1)
