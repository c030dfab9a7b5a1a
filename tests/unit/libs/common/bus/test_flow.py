"""What waits for messages of the flow, and what is dropped of names that never return."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from libs.common.bus import flow as flow_module
from libs.common.bus.delivery import TemporaryError
from libs.common.bus.flow import Flow
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.ordered_publisher import MAX_SUBJECTS, OrderedPublisher
from libs.common.bus.protocol import Bus, Follower, Message
from libs.common.bus.stream_cache import FORMER_STREAM, StreamCache
from libs.common.contract import events
from libs.common.contract.events import Event
from libs.common.contract.subjects import OBSERVED_NODE, subject_of
from services.watcher.core.kinds import NODE
from services.watcher.core.published_state import PublishedState
from tests import builders
from tests.builders import (
    STREAM_ID,
    make_cluster_networks,
    make_csr_observed,
    make_facts,
    make_leading,
    make_message,
    make_node,
    make_node_enriched,
    make_node_gone,
    make_node_observed,
    make_position,
    make_request,
    make_snapshot,
    make_unreachable,
)
from tests.clocks import ManualClock
from tests.service_flow import make_dependencies


def make_flow(**options: Any) -> Flow:
    """A flow whose cache is complete."""
    parts = make_dependencies(MemoryBus(MemoryServer()), clock=ManualClock())
    flow = Flow(parts=parts, service="test", max_silence_seconds=10.0, observe_only=True, **options)
    flow.cache.start_replay(make_position())
    flow.cache.apply(make_message(make_snapshot(), sequence=1))
    flow.cache.finish_replay()
    return flow


def make_node_message(sequence: int, *, stream_id: str = STREAM_ID) -> Message:
    event = msgspec.structs.replace(make_node_observed(make_node()), stream_id=stream_id)
    return make_message(event, sequence=sequence)


async def the_others_have_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_known_is_not_waited_for():
    flow = make_flow()
    await flow.wait_for(make_node_message(flow.cache.sequence))


async def test_each_goes_on_when_the_table_has_heard_its_message():
    flow = make_flow()
    table = flow.cache
    later, sooner = (
        asyncio.create_task(flow.wait_for(make_node_message(table.sequence + more))) for more in (2, 1)
    )
    await the_others_have_run()
    for first, (done, waits) in ((2, (sooner, later)), (3, (later, None))):
        table.apply(make_message(make_node_observed(make_node()), sequence=first))
        await the_others_have_run()
        assert done.done()
        assert waits is None or not waits.done()
    await asyncio.gather(sooner, later)


async def test_a_flow_that_stays_behind_is_a_temporary_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flow_module, "SYNC_TIMEOUT_SECONDS", 0.01)
    flow = make_flow()
    with pytest.raises(TemporaryError, match="the flow is behind"):
        await flow.wait_for(make_node_message(flow.cache.sequence + 1))


async def test_what_a_service_lacks_besides_keeps_everybody_waiting_until_it_is_there():
    lacks = ["no requests"]
    flow = make_flow(find_problems=lambda _: tuple(lacks))
    waits = asyncio.create_task(flow.wait_for(make_node_message(flow.cache.sequence)))
    await the_others_have_run()
    flow.cache.finish_replay()
    await the_others_have_run()
    assert not waits.done()
    assert flow.problems() == ("no requests",)
    lacks.clear()
    flow.cache.finish_replay()
    await waits


async def test_who_gives_up_waiting_is_not_in_the_way_of_the_others():
    flow = make_flow()
    table = flow.cache
    gives_up, stays = (
        asyncio.create_task(flow.wait_for(make_node_message(table.sequence + 1))) for _ in range(2)
    )
    await the_others_have_run()
    gives_up.cancel()
    await the_others_have_run()
    table.apply(make_message(make_node_observed(make_node()), sequence=table.sequence + 1))
    await stays
    assert gives_up.cancelled()


async def test_a_message_of_another_stream_is_a_temporary_error_until_the_cache_follows_that_stream():
    sync = make_flow()
    cache = sync.cache
    message = make_node_message(1, stream_id="newer")
    with pytest.raises(TemporaryError, match=FORMER_STREAM):
        await sync.wait_for(message)
    cache.start_replay(make_position(stream_id="newer"))
    waits = asyncio.create_task(sync.wait_for(message))
    await the_others_have_run()
    assert not waits.done()
    cache.apply(make_message(make_snapshot(stream_id="newer"), sequence=2))
    cache.finish_replay()
    await waits


async def test_after_a_wait_for_another_stream_the_message_itself_is_waited_for():
    sync = make_flow()
    cache = sync.cache
    cache.mark_disconnected("the stream was replaced")
    waits = asyncio.create_task(sync.wait_for(make_node_message(2, stream_id="newer")))
    await the_others_have_run()
    cache.start_replay(make_position(stream_id="newer"))
    cache.apply(make_message(make_snapshot(stream_id="newer"), sequence=1))
    cache.finish_replay()
    await the_others_have_run()
    assert not waits.done()
    cache.apply(make_node_message(2, stream_id="newer"))
    await waits


BROKEN = make_node_observed(make_node("broken"))
GOOD = make_node_observed(make_node("good"))


def apply_event(flow: Flow, event: Event) -> str:
    flow.cache.apply(make_message(event, sequence=flow.cache.sequence + 1))
    return flow.why_paused()


def make_failing_flow(applied: list[object]) -> Flow:
    """A flow that has failed once to apply BROKEN."""

    def apply(event: object) -> None:
        if event == BROKEN and not applied:
            raise KeyError("defect")
        applied.append(event)

    flow = make_flow(apply=apply, consequence="Nodes may be missing")
    applied.clear()
    assert apply_event(flow, BROKEN) == f"defect: cannot apply {subject_of(BROKEN)}, so Nodes may be missing"
    return flow


def test_a_failed_message_pauses_until_a_newer_one_of_its_subject_is_applied():
    applied: list[object] = []
    flow = make_failing_flow(applied)
    assert apply_event(flow, GOOD) != ""
    assert apply_event(flow, BROKEN) == ""  # succeeds the second time
    assert applied == [GOOD, BROKEN]


@pytest.mark.parametrize(
    ("event", "deletion"),
    [
        (make_node_observed(make_node()), events.NodeGone),
        (make_node_gone(make_node()), events.NodeGone),
        (make_node_enriched(make_node(), make_facts()), events.EnrichedNodeGone),
        (make_unreachable(), events.EnrichedNodeGone),
        (make_csr_observed(make_request("web-1", uid="uid-1")), events.CsrGone),
        (make_cluster_networks(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_whose_message_has_expired_is_deleted(event: Event, deletion: type[Any] | None):
    applied: list[Any] = []
    flow = make_flow(apply=applied.append)
    apply_event(flow, event)
    applied.clear()
    flow.cache.start_replay(make_position())
    flow.cache.finish_replay()  # without that subject
    gone = [(type(each), each.name, each.uid) for each in applied if each is not None]
    assert gone == ([(deletion, "web-1", "uid-1")] if deletion is not None else [])


def test_a_failure_ends_with_its_subject_or_the_stream():
    for stream_id in (STREAM_ID, "newer"):
        flow = make_failing_flow([])
        flow.cache.start_replay(make_position(stream_id=stream_id))
        flow.cache.finish_replay()  # without that subject: it has expired
        assert flow.why_paused() == ""


@pytest.mark.parametrize("observe_only", [False, True])
async def test_a_service_pauses_without_a_live_leader_but_an_observer_needs_none(observe_only: bool):
    clock = ManualClock()
    parts = make_dependencies(MemoryBus(MemoryServer()), clock=clock)
    flow = Flow(parts=parts, service="test", max_silence_seconds=10.0, observe_only=observe_only)
    led = asyncio.create_task(flow.wait_for_leader())
    flow.cache.start_replay(make_position())
    flow.cache.apply(make_message(make_leading(), sequence=1))  # replayed: it proves no leader
    flow.cache.finish_replay()
    await the_others_have_run()
    assert led.done() is observe_only
    assert bool(flow.why_paused()) is not observe_only
    flow.cache.apply(make_message(make_leading(), sequence=2))
    await led
    assert flow.why_paused() == ""
    clock.advance(11.0)
    assert bool(flow.why_paused()) is not observe_only


# ---- names that never return


YOUNG = builders.NOW + timedelta(minutes=50)
LATER = builders.NOW + timedelta(minutes=70)


def fed(follower: Follower) -> None:
    """With three Nodes, two of them gone; and a resync when the stream has dropped the older one of those."""
    follower.start_replay(builders.make_position())
    follower.finish_replay()
    follower.apply(builders.make_message(builders.make_node_observed(builders.make_node("there"))))
    follower.apply(builders.make_message(builders.make_node_gone(builders.make_node("old")), sequence=2))
    young = msgspec.structs.replace(builders.make_node_gone(builders.make_node("young")), observed_at=YOUNG)
    follower.apply(msgspec.structs.replace(builders.make_message(young, sequence=3), published_at=YOUNG))
    follower.apply(
        msgspec.structs.replace(
            builders.make_message(builders.make_snapshot(), sequence=4), published_at=LATER
        )
    )
    follower.mark_caught_up()


def test_a_table_drops_what_is_gone_for_longer_than_the_stream_keeps_it():
    table = StreamCache(clock=ManualClock())
    fed(table)
    kept = {message.subject for message in table.list_under(OBSERVED_NODE)}
    assert kept == {f"{OBSERVED_NODE}.young", f"{OBSERVED_NODE}.there"}
    assert table.is_complete


def test_the_watcher_drops_it_too():
    held = PublishedState(clock=ManualClock())
    fed(held)
    assert [held.get(NODE, name) is not None for name in ("old", "young", "there")] == [False, True, True]
    assert held.subject_count == 3  # the snapshot is one


def test_a_publisher_keeps_the_sequences_of_those_that_it_hears_of():
    publisher = OrderedPublisher(cast("Bus", None))  # nothing is published here
    publisher.record_sequence("there", 1)
    for number in range(MAX_SUBJECTS):
        publisher.record_sequence(f"gone-{number}", number + 2)
        publisher.record_sequence("there", 1)
    assert publisher.last_sequence_of("there") == 1
    assert publisher.last_sequence_of("gone-0") == 0
    assert publisher.last_sequence_of(f"gone-{MAX_SUBJECTS - 1}") == MAX_SUBJECTS + 1
