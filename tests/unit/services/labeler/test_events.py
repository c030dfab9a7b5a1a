"""Events about completed writes: written when no Node is written, with the time of the write."""

import asyncio
import logging
from datetime import datetime, timedelta

import pytest

from libs.common.bus.delivery import TemporaryError
from libs.common.kube.events import ObjectEvent
from services.labeler import node_event_recorder
from services.labeler.event_deduplicator import EventDeduplicator
from services.labeler.node_event_recorder import IDLE_SECONDS, MAX_DELAY_SECONDS, NodeEventRecorder
from services.labeler.plan import Notice, Plan
from tests.builders import make_node
from tests.bus_actors import wait_until
from tests.manual_clock import ManualClock

INITIALIZED = Plan(outcome="initialized", reason="metal machine at 10.0.0.5")
NOTICE = Notice(reason="RuleSkipped", message="rule web: label x")


class Writer:
    """Writes Events one by one, when the test allows it."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str, datetime]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.failing = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.may_go_on.wait()
            if self.failing:
                self.failing -= 1
                raise TemporaryError("the API server does not answer")
            self.written.append((event.regarding.name, event.reason, now))
        finally:
            self.at_once -= 1
        return True


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def events(writer: Writer, clock: ManualClock) -> NodeEventRecorder:
    return NodeEventRecorder(writer, EventDeduplicator(), now=clock.now, idle_seconds=lambda: IDLE_SECONDS)


async def test_whoever_tells_waits_for_no_event_and_in_a_busy_cluster_they_go_one_at_a_time(
    writer: Writer, clock: ManualClock
):
    events = NodeEventRecorder(writer, EventDeduplicator(), now=clock.now, idle_seconds=lambda: 0.0)
    begun = clock.now()
    writer.may_go_on.clear()
    running = asyncio.create_task(events.run())
    for name in ("a", "b", "c"):
        events.enqueue(make_node(name, uid=f"uid-{name}"), INITIALIZED)
    clock.advance(MAX_DELAY_SECONDS)
    writer.may_go_on.set()
    await wait_until(lambda: len(writer.written) == 3, "three Events")
    assert writer.written == [(name, "Synced", begun) for name in ("a", "b", "c")]
    assert writer.most_at_once == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_no_event_goes_while_nodes_are_written_unless_it_has_waited_for_long(
    writer: Writer, clock: ManualClock
):
    looks = 0

    def never_quiet() -> float:
        nonlocal looks
        looks += 1
        return IDLE_SECONDS * 0.99  # just not: the next look follows at once

    events = NodeEventRecorder(writer, EventDeduplicator(), now=clock.now, idle_seconds=never_quiet)
    running = asyncio.create_task(events.run())
    events.enqueue(make_node(), INITIALIZED)
    await wait_until(lambda: looks >= 3, "several looks at the writes")
    assert writer.written == []
    clock.advance(MAX_DELAY_SECONDS)
    await wait_until(lambda: len(writer.written) == 1, "the Event")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_event_goes_as_soon_as_no_node_is_written_any_more(writer: Writer, clock: ManualClock):
    quiet = 0.0
    events = NodeEventRecorder(writer, EventDeduplicator(), now=clock.now, idle_seconds=lambda: quiet)
    running = asyncio.create_task(events.run())
    events.enqueue(make_node(), INITIALIZED)
    quiet = IDLE_SECONDS
    await wait_until(lambda: len(writer.written) == 1, "the Event")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_last_words_of_many_nodes_are_said_side_by_side(writer: Writer, events: NodeEventRecorder):
    writer.may_go_on.clear()
    for number in range(40):
        events.enqueue(make_node(f"n{number}", uid=f"uid-{number}"), INITIALIZED)
    ending = asyncio.create_task(events.flush())
    await wait_until(lambda: writer.at_once == 16, "sixteen at once")
    writer.may_go_on.set()
    await ending
    assert len(writer.written) == 40


async def test_a_notice_that_could_not_be_written_is_given_with_the_next_plan_and_then_never_again(
    writer: Writer, events: NodeEventRecorder
):
    writer.failing = 1
    plan = Plan(outcome="unchanged", reason="", notices=(NOTICE,))
    for _ in range(3):
        events.enqueue(make_node(), plan)
        await events.write_all()
    assert [reason for _, reason, _ in writer.written] == ["RuleSkipped"]


async def test_a_notice_that_two_plans_bear_is_told_once_side_by_side_too(
    writer: Writer, events: NodeEventRecorder, clock: ManualClock
):
    writer.may_go_on.clear()
    for _ in range(2):
        events.enqueue(make_node(), Plan(outcome="unchanged", reason="", notices=(NOTICE,)))
        clock.advance(61)
    running = asyncio.create_task(events.run())
    await wait_until(lambda: writer.at_once >= 1, "one is being written")
    writer.may_go_on.set()
    await wait_until(lambda: not events._queue and not writer.at_once, "all Events are written")
    assert [reason for _, reason, _ in writer.written] == ["RuleSkipped"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_clock_that_is_set_back_keeps_no_event_waiting(writer: Writer, clock: ManualClock):
    events = NodeEventRecorder(
        writer, EventDeduplicator(), now=clock.now, idle_seconds=lambda: IDLE_SECONDS * 0.99
    )
    running = asyncio.create_task(events.run())
    events.enqueue(make_node(), INITIALIZED)
    clock.advance(-3600)
    await wait_until(lambda: len(writer.written) == 1, "the Event")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_has_nothing_to_say_does_not_wait_in_the_queue(writer: Writer, events: NodeEventRecorder):
    events.enqueue(make_node(), Plan(outcome="updated", reason="the Node did not say what its machine says"))
    await events.write_all()
    assert writer.written == []


async def test_an_event_that_was_being_written_at_the_end_is_among_the_last_words(
    writer: Writer, events: NodeEventRecorder
):
    writer.may_go_on.clear()
    running = asyncio.create_task(events.run())
    events.enqueue(make_node(), INITIALIZED)
    await wait_until(lambda: writer.at_once == 1, "an Event is being written")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    writer.may_go_on.set()
    await events.flush()
    assert [name for name, *_ in writer.written] == [make_node().name]


async def test_last_words_do_not_keep_the_process_and_say_how_many_went_unsaid(
    writer: Writer,
    events: NodeEventRecorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(node_event_recorder, "FLUSH_SECONDS", 0.01)
    writer.may_go_on.clear()
    events.enqueue(make_node(), INITIALIZED)
    with caplog.at_level(logging.WARNING):
        await events.flush()
    [line] = caplog.records
    assert line.getMessage() == "Events dropped: the process ends"
    assert line.__dict__["count"] == 1


async def test_too_many_events_push_out_the_oldest_and_the_log_names_its_node(
    writer: Writer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(node_event_recorder, "MAX_QUEUED", 2)
    events = NodeEventRecorder(writer, EventDeduplicator(), now=clock.now, idle_seconds=lambda: IDLE_SECONDS)
    for name in ("a", "b", "c"):
        events.enqueue(make_node(name, uid=f"uid-{name}"), INITIALIZED)
    await events.write_all()
    assert [name for name, *_ in writer.written] == ["b", "c"]
    assert [line.__dict__["node"] for line in caplog.records] == ["a"]
    assert clock.now() - writer.written[0][2] == timedelta(0)


async def test_what_waits_to_be_told_goes_unsaid_on_a_node_that_has_become_anothers(
    writer: Writer, clock: ManualClock
):
    foreign: set[str] = set()
    events = NodeEventRecorder(
        writer,
        EventDeduplicator(),
        now=clock.now,
        idle_seconds=lambda: 0.0,
        is_foreign=lambda node: node.name in foreign,
    )
    for name in ("web-1", "web-2"):
        events.enqueue(make_node(name), Plan(outcome="initialized", reason="x"))
    foreign.add("web-1")
    await events.flush()
    assert [name for name, _, _ in writer.written] == ["web-2"]
