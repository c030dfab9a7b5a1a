"""Handlers wait for the cache; an event that cannot be applied stops every decision."""

import asyncio

import msgspec
import pytest

from libs.common.bus import follow_flow
from libs.common.bus.delivery import TemporaryError
from libs.common.bus.follow_flow import CacheSync, EventApplier
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import FORMER_STREAM, StreamCache
from tests.builders import (
    STREAM_ID,
    make_message,
    make_node,
    make_node_observed,
    make_position,
    make_snapshot,
)
from tests.manual_clock import ManualClock


def a_complete_table() -> StreamCache:
    table = StreamCache(clock=ManualClock())
    table.start_replay(make_position())
    table.apply(make_message(make_snapshot(), sequence=1))
    table.finish_replay()
    return table


def a_complete_sync() -> tuple[StreamCache, CacheSync]:
    table = a_complete_table()
    return table, CacheSync(table)


def make_node_message(sequence: int, *, stream_id: str = STREAM_ID) -> Message:
    event = msgspec.structs.replace(make_node_observed(make_node()), stream_id=stream_id)
    return make_message(event, sequence=sequence)


async def the_others_have_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_known_is_not_waited_for():
    table = a_complete_table()
    await CacheSync(table).wait_for(make_node_message(table.sequence))


async def test_each_goes_on_when_the_table_has_heard_its_message():
    table, flow = a_complete_sync()
    later, sooner = (
        asyncio.create_task(flow.wait_for(make_node_message(table.sequence + more))) for more in (2, 1)
    )
    await the_others_have_run()
    for first, (done, waits) in ((2, (sooner, later)), (3, (later, None))):
        table.apply(make_message(make_node_observed(make_node()), sequence=first))
        flow.wake_waiters()
        await the_others_have_run()
        assert done.done()
        assert waits is None or not waits.done()
    await asyncio.gather(sooner, later)


async def test_a_flow_that_stays_behind_is_a_temporary_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(follow_flow, "SYNC_TIMEOUT_SECONDS", 0.01)
    table = a_complete_table()
    with pytest.raises(TemporaryError, match="the flow is behind"):
        await CacheSync(table).wait_for(make_node_message(table.sequence + 1))


async def test_what_a_service_lacks_besides_keeps_everybody_waiting_until_it_is_there():
    table, lacks = a_complete_table(), ["no requests"]
    flow = CacheSync(table, problems=lambda _: tuple(lacks))
    waits = asyncio.create_task(flow.wait_for(make_node_message(table.sequence)))
    await the_others_have_run()
    flow.wake_waiters()
    await the_others_have_run()
    assert not waits.done()
    assert flow.problems() == ("no requests",)
    lacks.clear()
    flow.wake_waiters()
    await waits


async def test_who_gives_up_waiting_is_not_in_the_way_of_the_others():
    table, flow = a_complete_sync()
    gives_up, stays = (
        asyncio.create_task(flow.wait_for(make_node_message(table.sequence + 1))) for _ in range(2)
    )
    await the_others_have_run()
    gives_up.cancel()
    await the_others_have_run()
    table.apply(make_message(make_node_observed(make_node()), sequence=table.sequence + 1))
    flow.wake_waiters()
    await stays
    assert gives_up.cancelled()


async def test_a_message_of_another_stream_is_a_temporary_error_until_the_cache_follows_that_stream():
    cache, sync = a_complete_sync()
    message = make_node_message(1, stream_id="newer")
    with pytest.raises(TemporaryError, match=FORMER_STREAM):
        await sync.wait_for(message)
    cache.start_replay(make_position(stream_id="newer"))
    waits = asyncio.create_task(sync.wait_for(message))
    await the_others_have_run()
    assert not waits.done()
    cache.apply(make_message(make_snapshot(stream_id="newer"), sequence=2))
    cache.finish_replay()
    sync.wake_waiters()
    await waits


async def test_after_a_wait_for_another_stream_the_message_itself_is_waited_for():
    cache, sync = a_complete_sync()
    cache.mark_disconnected("the stream was replaced")
    waits = asyncio.create_task(sync.wait_for(make_node_message(2, stream_id="newer")))
    await the_others_have_run()
    cache.start_replay(make_position(stream_id="newer"))
    cache.apply(make_message(make_snapshot(stream_id="newer"), sequence=1))
    cache.finish_replay()
    sync.wake_waiters()
    await the_others_have_run()
    assert not waits.done()
    cache.apply(make_node_message(2, stream_id="newer"))
    sync.wake_waiters()
    await waits


BROKEN = make_message(make_node_observed(make_node("broken")))
GOOD = make_message(make_node_observed(make_node("good")))


def make_applier(applied: list[object]) -> EventApplier:
    def apply(event: object) -> None:
        if event == BROKEN.event and not applied:
            raise KeyError("defect")
        applied.append(event)

    return EventApplier(apply, consequence="Nodes may be missing")


def test_a_failed_message_is_reported_until_a_newer_one_of_its_subject_is_applied():
    applied: list[object] = []
    applier = make_applier(applied)
    applier.apply(BROKEN)
    failure = f"defect: cannot apply {BROKEN.subject}, so Nodes may be missing"
    assert applier.explain_failure() == failure
    applier.apply(GOOD)
    assert applier.explain_failure() == failure
    applier.apply(BROKEN)  # succeeds the second time
    assert applier.explain_failure() == ""
    assert applied == [GOOD.event, BROKEN.event]


def test_a_failure_ends_with_its_subject_or_the_stream():
    applier = make_applier([])
    applier.apply(BROKEN)
    applier.handle_expired(GOOD.subject)
    assert applier.explain_failure()
    applier.handle_expired(BROKEN.subject)
    assert applier.explain_failure() == ""
    applier.apply(BROKEN)
    applier.clear()
    assert applier.explain_failure() == ""
