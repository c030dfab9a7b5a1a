"""What every bus must do. A new one joins by a fixture parameter, and by nothing else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec
import pytest

from libs.common.bus.delivery import Ack, Disposition, Nak
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import (
    Bus,
    BusError,
    FollowLag,
    Message,
    NoStream,
    StreamFull,
    WrongLastSequence,
)
from libs.common.bus.stream_limits import STREAM_STEP_BYTES, limit_for_bytes
from libs.common.contract.events import (
    MAX_EVENT_BYTES,
    DeadLetter,
    EventError,
    Leading,
)
from libs.common.contract.subjects import (
    ENRICHED_NODE,
    FLOW,
    INSTANCE_METADATA,
    LEADING,
    SNAPSHOT,
    subject_of,
)
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.nats_server import NatsServer
from tests.builders import NOW, make_snapshot
from tests.bus_actors import (
    MAX_BYTES,
    NATS,
    NODES,
    Recorder,
    Worker,
    close_at_end,
    make_event,
    provisioned,
    publish_with_headroom,
    run_during,
    wait_until,
)
from tests.flow_actors import PATIENT_TIMING
from tests.named_machines import make_instance_metadata

STORE_BYTES = 200 * 1024 * 1024  # three steps of the stream's limit fit

BusFactory = Callable[..., Awaitable[Bus]]


@pytest.fixture(params=[NATS, "memory"])
async def bus_factory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BusFactory]:
    """`await bus_factory("labeler")`: one more bus of that service in the same world; closed at the end."""
    async with AsyncExitStack() as stack:
        connect: BusFactory
        if request.param == "nats":
            server = await stack.enter_async_context(NatsServer.start(tmp_path / "nats"))
            limited = f'jetstream {{ store_dir: "{server.store}", max_file_store: {STORE_BYTES} }}\n'
            (server.run_dir / "nats.conf").write_text(limited)
            await server.restart()
            connect = partial(NatsBus.connect, (server.url,), timing=PATIENT_TIMING)
        else:
            memory = MemoryServer()

            async def connect(*, service: str) -> Bus:
                return MemoryBus(memory)

        yield close_at_end(stack, connect)


@pytest.fixture
async def bus(bus_factory: BusFactory) -> Bus:
    """A provisioned bus of the watcher."""
    return await provisioned(await bus_factory("watcher"))


def subject(name: str) -> str:
    return f"{ENRICHED_NODE}.{name}"


# ---- provision


async def test_provisioning_gives_the_stream_id_and_leaves_no_problem(bus_factory: BusFactory):
    bus = await bus_factory()
    stream_id = await bus.provision((NODES,), max_bytes=MAX_BYTES)
    assert stream_id
    assert bus.stream_id == stream_id
    assert bus.problems() == ()


async def test_provisioning_again_keeps_stream_id_and_messages(bus: Bus):
    sequence = await bus.publish(make_event())
    assert await bus.provision((NODES,), max_bytes=2 * MAX_BYTES) == bus.stream_id
    kept = await bus.get_last(subject("web-1"))
    assert kept is not None
    assert kept.sequence == sequence


async def test_those_who_do_not_provision_learn_the_stream_id_too(bus: Bus, bus_factory: BusFactory):
    other = await bus_factory("metadata")
    await wait_until(lambda: other.stream_id == bus.stream_id, "the stream ID is known")
    assert other.problems() == ()


async def test_before_the_stream_exists_publish_and_last_say_so(bus_factory: BusFactory):
    bus = await bus_factory("metadata")
    with pytest.raises(NoStream):
        await bus.publish(make_event())
    with pytest.raises(NoStream):
        await bus.get_last(subject("web-1"))
    await wait_until(lambda: any("does not exist" in problem for problem in bus.problems()))
    assert bus.stream_id == ""


# ---- publish and last


async def test_the_last_message_of_a_subject_is_what_was_published_last(bus: Bus):
    first = await bus.publish(make_event(order=1))
    second = await bus.publish(make_event(order=2), headers={"traceparent": "00-1-2-01"})
    assert second > first
    message = await bus.get_last(subject("web-1"))
    assert message is not None
    assert (message.subject, message.event) == (subject("web-1"), make_event(order=2))
    assert (message.sequence, dict(message.headers)) == (second, {"traceparent": "00-1-2-01"})
    assert abs(message.published_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_subject_that_nobody_published_to_has_no_last_message(bus: Bus):
    assert await bus.get_last(subject("unknown")) is None


async def test_a_publisher_that_does_not_know_the_last_sequence_is_refused(bus: Bus):
    sequence = await bus.publish(make_event(order=1), expected_sequence=0)
    for stale in (0, sequence + 1):
        with pytest.raises(WrongLastSequence):
            await bus.publish(make_event(order=2), expected_sequence=stale)
    await bus.publish(make_event(order=2), expected_sequence=sequence)
    await bus.publish(make_event(order=3))


async def test_of_many_publishers_that_expect_the_same_exactly_one_gets_through(bus: Bus):
    results = await asyncio.gather(
        *(bus.publish(make_event(order=order), expected_sequence=0) for order in range(20)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, WrongLastSequence) for result in results) == 19


async def test_concurrent_publishes_to_many_subjects_all_arrive(bus: Bus):
    sequences = await asyncio.gather(
        *(bus.publish(make_event(f"web-{n}"), expected_sequence=0) for n in range(600))
    )
    assert len(set(sequences)) == 600


async def test_whoever_publishes_many_in_a_row_gives_others_their_turn(bus: Bus):
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with run_during(others()):
        for n in range(50):
            await bus.publish(make_event(f"web-{n}"))
        assert turns >= 50


async def test_a_message_with_a_ttl_goes_and_leaves_nothing_to_expect(bus: Bus):
    await bus.publish(make_event(), ttl_seconds=1)

    async def gone() -> bool:
        return await bus.get_last(subject("web-1")) is None

    await wait_until(gone, "expired")
    await bus.publish(make_event(), expected_sequence=0)


async def test_an_event_beyond_the_limit_is_refused_before_it_is_sent(bus: Bus):
    with pytest.raises(EventError):
        await bus.publish(make_event(uid="u" * MAX_EVENT_BYTES))


ON_NATS = pytest.mark.parametrize(
    "bus_factory", [NATS], indirect=True
)  # only its stream has a limit, and outlives the watcher that made it


@ON_NATS
async def test_a_full_stream_takes_no_new_subject_and_nothing_larger_until_it_has_room(bus: Bus):
    size = 10_000
    await bus.provision((NODES,), max_bytes=100_000)
    await asyncio.gather(*(bus.publish(make_event(f"web-{n}", uid="u" * size)) for n in range(9)))
    with pytest.raises(StreamFull):
        await bus.publish(make_event("web-9", uid="u" * size))
    assert any("is full" in problem for problem in bus.problems())
    await bus.publish(make_event("web-1", order=2, uid="u" * size))
    await bus.publish(make_event("web-1", order=2, uid="u" * (size - 1)))
    with pytest.raises(StreamFull):
        await bus.publish(make_event("web-1", order=3, uid="u" * (4 * size)))
    await bus.provision((NODES,), max_bytes=MAX_BYTES)
    assert bus.problems() == ()
    await bus.publish(make_event("web-9", uid="u" * size))


@ON_NATS
async def test_a_full_stream_accepts_a_leading_while_the_headroom_is_open_and_nothing_large(bus: Bus):
    await bus.provision((NODES,), max_bytes=100_000)
    for size in (10_000, 1):
        with suppress(StreamFull):
            for n in range(10_000):
                await bus.publish(make_event(f"web-{size}-{n}", uid="u" * size))
    leading = Leading(stream_id=bus.stream_id, epoch=1, holder="host-a" * 30)
    for epoch in (1, 20, 300):
        longer = msgspec.structs.replace(leading, epoch=epoch)
        await publish_with_headroom(longer, bus, other=bus)
        kept = await bus.get_last(LEADING)
        assert kept is not None
        assert kept.event == longer
        with pytest.raises(StreamFull):
            await bus.publish(make_event("small"))
        assert (await bus.stats()).max_bytes == 100_000


@ON_NATS
async def test_the_headroom_tells_how_much_of_it_is_used(bus: Bus):
    await bus.provision((NODES,), max_bytes=100_000)
    word = make_event("large", uid="u" * 20_000)
    with suppress(StreamFull):
        for n in range(10_000):
            await bus.publish(make_event(f"web-{n}", uid="u" * 5_000))
    async with bus.headroom(word) as used:
        assert used == 0
        await bus.publish(word)
    held = (await bus.stats()).bytes
    async with bus.headroom(word) as used:
        assert used == held - 100_000


@ON_NATS
async def test_provisioning_makes_a_stream_that_is_more_than_half_full_larger(bus: Bus):
    await bus.provision((NODES,), max_bytes=100_000)
    for n in range(3):
        await bus.publish(make_event(f"web-{n}", uid="u" * 10_000))
    await bus.provision((NODES,), max_bytes=100_000)
    assert (await bus.stats()).max_bytes == 100_000
    for n in range(3, 7):
        await bus.publish(make_event(f"web-{n}", uid="u" * 10_000))
    await bus.provision((NODES,), max_bytes=100_000)
    assert (await bus.stats()).max_bytes == limit_for_bytes(100_000)


@ON_NATS
async def test_closing_the_headroom_keeps_the_limit_that_another_leader_set(bus_factory: BusFactory):
    former, present = await bus_factory(), await bus_factory()
    await former.provision((NODES,), max_bytes=limit_for_bytes(0))
    async with former.headroom(make_event()):
        await present.provision((NODES,), max_bytes=limit_for_bytes(STREAM_STEP_BYTES))
    assert (await present.stats()).max_bytes == limit_for_bytes(STREAM_STEP_BYTES)


@ON_NATS
async def test_a_new_stream_gets_the_largest_limit_for_which_the_store_has_room(bus_factory: BusFactory):
    bus = await bus_factory()
    await bus.provision((NODES,), max_bytes=limit_for_bytes(2 * STORE_BYTES))
    assert (await bus.stats()).max_bytes == limit_for_bytes(STORE_BYTES - STREAM_STEP_BYTES)
    await bus.publish(make_event())


@ON_NATS
async def test_a_stream_shrinks_and_grows_again_within_the_store(bus: Bus):
    for wanted, given in ((447, 191), (63, 63), (127, 127), (255, 191)):
        await bus.provision((NODES,), max_bytes=wanted * 1024 * 1024)
        assert (await bus.stats()).max_bytes == given * 1024 * 1024


async def test_what_the_publisher_does_to_its_headers_no_reader_sees(bus: Bus):
    headers = {"traceparent": "00-1-2-01"}
    recorder = Recorder()
    async with run_during(bus.follow("test", f"{FLOW}.>", recorder)):
        await bus.publish(make_event(), expected_sequence=0, ttl_seconds=60, headers=headers)
        assert headers == {"traceparent": "00-1-2-01"}, "the caller's stay the caller's"
        headers["traceparent"] = "the publisher's"
        await wait_until(lambda: bool(recorder.messages))
    kept = await bus.get_last(recorder.messages[0].subject)
    assert kept is not None
    for message in (recorder.messages[0], kept):
        assert dict(message.headers) == {"traceparent": "00-1-2-01"}


# ---- consume


async def test_a_message_is_handled_once_and_not_again(bus: Bus):
    worker = Worker()
    async with worker.consume(bus):
        await bus.publish(make_event("web-1"))
        await wait_until(lambda: worker.list_names() == ["web-1"])
    later = Worker()
    async with later.consume(bus):
        await bus.publish(make_event("web-2"))
        await wait_until(lambda: later.list_names() == ["web-2"])
    assert worker.list_names() == ["web-1"]
    assert not worker.seen[0].redelivered


async def test_many_versions_of_an_object_are_one_piece_of_work(bus: Bus):
    for order in range(5):
        await bus.publish(make_event(order=order))
    worker = Worker()
    async with worker.consume(bus):
        await bus.publish(make_event("web-2"))
        await wait_until(lambda: "web-2" in worker.list_names())
    assert [message.event for message in worker.seen if "web-1" in message.subject] == [make_event(order=4)]


async def test_only_what_the_filter_names_is_delivered(bus: Bus):
    worker = Worker()
    async with worker.consume(bus):
        await bus.publish(make_snapshot())
        await bus.publish(make_event())
        await wait_until(lambda: len(worker.seen) == 1)
    assert worker.list_names() == ["web-1"]


async def test_a_nak_brings_the_message_back_after_its_delay(bus: Bus):
    worker = Worker(lambda message: Ack() if message.redelivered else Nak(0.3, "not yet"))
    async with worker.consume(bus):
        started = asyncio.get_running_loop().time()
        await bus.publish(make_event())
        await wait_until(lambda: len(worker.finished) == 2)
    assert asyncio.get_running_loop().time() - started >= 0.3
    assert [message.redelivered for message in worker.seen] == [False, True]


async def test_a_parked_message_that_is_replaced_never_comes_back(bus: Bus):
    # The last one is parked for the same time: once it is back, the first one had its chance to come back.
    first, newer, last = make_event(order=1), make_event(order=2), make_event("parked-later")
    park = Nak(3.0, "down")  # longer than a busy machine takes to publish the next event
    worker = Worker(lambda message: Ack() if message.event == newer or message.redelivered else park)
    async with worker.consume(bus):
        for count, event in enumerate((first, newer, last), 1):
            await bus.publish(event)
            await wait_until(lambda count=count: len(worker.finished) >= count)  # type: ignore[misc]
        await wait_until(lambda: len(worker.finished) == 4)
    seen = [(message.event, message.redelivered) for message in worker.seen]
    assert seen == [(first, False), (newer, False), (last, False), (last, True)]


@pytest.mark.parametrize("late", [Ack(), Nak(0.1, "late")])
async def test_a_newer_version_is_delivered_at_once_and_a_verdict_on_the_older_one_harms_nothing(
    bus: Bus, late: Disposition
):
    worker = Worker(lambda message: late if message.event == make_event(order=1) else Ack())
    worker.gate.clear()
    async with worker.consume(bus):
        await bus.publish(make_event(order=1))
        await wait_until(lambda: worker.in_flight == 1)
        await bus.publish(make_event(order=2))
        await wait_until(lambda: worker.in_flight == 2)
        worker.gate.set()
        await wait_until(lambda: len(worker.finished) == 2)
        await asyncio.sleep(0.3)  # a late redelivery would have arrived by now
        await bus.publish(make_event("next"))
        await wait_until(lambda: "next" in worker.list_names())
    assert [message.event for message in worker.seen[:2]] == [make_event(order=1), make_event(order=2)]
    assert not worker.seen[1].redelivered
    assert worker.list_names() == ["web-1", "web-1", "next"]


async def test_many_parked_retries_do_not_starve_the_healthy(bus: Bus):
    worker = Worker(lambda message: Nak(600.0, "down") if "parked" in message.subject else Ack())
    async with worker.consume(bus, in_flight=4):
        await asyncio.gather(*(bus.publish(make_event(f"parked-{n}")) for n in range(200)))
        await wait_until(lambda: len(worker.finished) == 200)
        await bus.publish(make_event("healthy"))
        await wait_until(lambda: "healthy" in worker.list_names())


async def test_a_handler_that_does_not_end_is_cancelled_and_its_message_goes_to_others(
    bus: Bus, bus_factory: BusFactory
):
    worker, other = Worker(), Worker()
    worker.gate.clear()
    async with worker.consume(bus) as task:
        await bus.publish(make_event())
        await wait_until(lambda: worker.in_flight == 1)

        def gone() -> bool:
            return not task.cancel()  # once: finish what is in flight; again: there is no time for that

        await wait_until(gone)
    assert worker.finished == []
    async with other.consume(await bus_factory("labeler")):
        await wait_until(lambda: other.list_names() == ["web-1"])
    assert other.seen[0].redelivered


@ON_NATS
async def test_a_durable_made_anew_under_its_consumer_goes_on_and_loses_nothing(bus: Bus):
    worker = Worker(lambda message: Ack() if message.redelivered else Nak(0.1, "once more"))
    worker.gate.clear()
    async with worker.consume(bus):
        await bus.publish(make_event("web-1"))
        await wait_until(lambda: worker.in_flight == 1)
        narrow = msgspec.structs.replace(NODES, filter=subject("web-1"))
        await bus.provision((narrow,), max_bytes=MAX_BYTES)
        await bus.publish(make_event("web-2"))
        worker.gate.set()
        await wait_until(lambda: any(message.redelivered for message in worker.finished))
        await bus.publish(make_event("web-1", order=2))
        await wait_until(lambda: worker.finished[-1].event == make_event("web-1", order=2))
    assert set(worker.list_names()) == {"web-1"}
    assert worker.max_in_flight == 1, "what is in hand is not handed out beside it"


async def test_handling_runs_in_the_context_of_whoever_consumes(bus: Bus):
    # Log fields and the trace are context: a handler must not speak in the publisher's name.
    spoken_for: ContextVar[str] = ContextVar("spoken_for", default="none")
    heard: list[str] = []

    def judge(message: Message) -> Disposition:
        heard.append(spoken_for.get())
        return Ack()

    spoken_for.set("the consumer")
    async with Worker(judge).consume(bus):
        spoken_for.set("the publisher")
        await bus.publish(make_event("web-1"))
        await wait_until(lambda: heard == ["the consumer"])
        await bus.publish(make_event("web-1", order=2))
        await wait_until(lambda: heard == ["the consumer", "the consumer"])


async def test_no_more_than_in_flight_are_handled_at_once_and_all_in_the_end(bus: Bus):
    worker = Worker()
    worker.gate.clear()
    await asyncio.gather(*(bus.publish(make_event(f"web-{n}")) for n in range(40)))
    async with worker.consume(bus, in_flight=4):
        await wait_until(lambda: worker.in_flight == 4)
        await bus.publish(make_event("web-40"))
        worker.gate.set()
        await wait_until(lambda: len(worker.finished) == 41)
    assert worker.max_in_flight == 4


async def test_long_handling_is_not_delivered_again(bus: Bus):
    short = msgspec.structs.replace(NODES, name="labeler-short", ack_wait_seconds=2.0)
    await bus.provision((NODES, short), max_bytes=MAX_BYTES)
    worker = Worker()
    worker.gate.clear()
    async with worker.consume(bus, durable=short):
        await bus.publish(make_event("slow"))
        await wait_until(lambda: worker.in_flight == 1)
        await asyncio.sleep(5.0)  # the fact under test is what does not happen in two and a half ack_waits
        worker.gate.set()
        await wait_until(lambda: len(worker.finished) == 1)
        await bus.publish(make_event("next"))
        await wait_until(lambda: worker.list_names() == ["slow", "next"])


async def test_two_replicas_share_the_work(bus: Bus, bus_factory: BusFactory):
    replicas = [await bus_factory("labeler") for _ in range(2)]
    workers = [Worker(), Worker()]
    for worker in workers:
        worker.gate.clear()
    async with (
        workers[0].consume(replicas[0], in_flight=5),
        workers[1].consume(replicas[1], in_flight=5),
    ):
        names = [f"web-{n}" for n in range(30)]
        await asyncio.gather(*(bus.publish(make_event(name)) for name in names))
        await wait_until(lambda: all(worker.in_flight == 5 for worker in workers))
        for worker in workers:
            worker.gate.set()
        await wait_until(lambda: sum(len(worker.finished) for worker in workers) == 30)
    assert sorted(workers[0].list_names() + workers[1].list_names()) == sorted(names)


async def test_at_the_end_handlers_finish_and_the_rest_goes_to_others_at_once(
    bus: Bus, bus_factory: BusFactory
):
    leaving, staying = await bus_factory("labeler"), await bus_factory("labeler")
    worker, other = Worker(), Worker()
    worker.gate.clear()
    async with worker.consume(leaving, in_flight=2) as task:
        await asyncio.gather(*(bus.publish(make_event(f"web-{n}")) for n in range(6)))
        await wait_until(lambda: worker.in_flight == 2)
        task.cancel()
        async with other.consume(staying):
            await wait_until(lambda: len(other.finished) == 4)
            assert not task.done()
            worker.gate.set()
            await wait_until(task.done)
            await bus.publish(make_event("last"))
            await wait_until(lambda: "last" in other.list_names())
    assert len(worker.finished) == 2
    assert not set(worker.list_names()) & set(other.list_names())


async def test_whoever_consumes_before_the_stream_exists_begins_when_it_does(bus_factory: BusFactory):
    early, watcher = await bus_factory("labeler"), await bus_factory("watcher")
    worker = Worker()
    async with worker.consume(early):
        await wait_until(lambda: any("labeler-nodes" in problem for problem in early.problems()))
        await watcher.provision((NODES,), max_bytes=MAX_BYTES)
        await watcher.publish(make_event())
        await wait_until(lambda: worker.list_names() == ["web-1"])
        await wait_until(lambda: early.problems() == (), "no problem left")


# ---- follow


async def test_a_follower_hears_the_last_of_each_subject_in_order_and_then_what_happens(bus: Bus):
    for name, order in (("a", 1), ("b", 1), ("a", 2), ("c.d", 1)):
        await bus.publish(make_event(name, order=order))
    last = await bus.publish(make_snapshot())
    recorder = Recorder()
    async with run_during(bus.follow("test", f"{FLOW}.>", recorder)):
        await wait_until(lambda: recorder.is_caught_up)
        assert [(opened.stream_id, opened.last_sequence) for opened in recorder.opened] == [
            (bus.stream_id, last)
        ]
        assert [message.subject for message in recorder.messages] == [
            subject("b"),
            subject("a"),
            subject("c.d"),
            SNAPSHOT,
        ]
        await bus.publish(make_event("b", order=2))
        await wait_until(lambda: len(recorder.messages) == 5)
        assert recorder.messages[-1].event == make_event("b", order=2)
    assert (recorder.replay_count, recorder.disconnects) == (1, [])


async def test_a_follower_is_told_whenever_nothing_is_pending_also_behind_a_subject_that_it_leaves_out(
    bus: Bus,
):
    await bus.publish(make_snapshot())
    recorder = Recorder()
    following = bus.follow("test", f"{FLOW}.>", recorder, exclude=lambda subject: subject == SNAPSHOT)
    async with run_during(following):
        await wait_until(lambda: recorder.is_caught_up)
        for count in (1, 2):
            await asyncio.gather(bus.publish(make_event(f"web-{count}")), bus.publish(make_snapshot()))
            await wait_until(lambda count=count: recorder.caught_up_with == count)  # type: ignore[misc]
    assert recorder.subjects == {subject("web-1"), subject("web-2")}


async def test_the_lag_of_a_follower_is_what_it_has_not_received_yet(bus: Bus):
    class Lagging(Recorder):
        def apply(self, message: Message) -> None:
            super().apply(message)
            lags.append(bus.lag("test"))

    lags: list[FollowLag] = []
    await asyncio.gather(*(bus.publish(make_event(f"web-{n}")) for n in range(3)))
    recorder = Lagging()
    async with run_during(bus.follow("test", f"{FLOW}.>", recorder)):
        await wait_until(lambda: recorder.is_caught_up)
        assert lags == [FollowLag(messages=left) for left in (2, 1, 0)], "a replay has messages of any age"
        before = recorder.messages[-1].published_at
        await asyncio.gather(*(bus.publish(make_event(f"web-{n}", order=2)) for n in range(200)))
        await wait_until(lambda: len(recorder.messages) >= 203)
        assert {lag.since is None for lag in lags[3:] if not lag.messages} <= {True}
        assert all(lag.since >= before for lag in lags if lag.since is not None)
        assert bus.lag("test") == FollowLag()
        assert bus.lag("another") == FollowLag()


async def test_a_star_in_a_filter_stands_for_one_token(bus: Bus):
    named = make_instance_metadata(name="web.1")
    other = make_instance_metadata(account="test", name="web-2")
    for event in (named, other):
        await bus.publish(event)
    await bus.publish(make_event())
    recorder = Recorder()
    async with run_during(bus.follow("test", INSTANCE_METADATA, recorder)):
        await wait_until(lambda: recorder.is_caught_up)
    assert recorder.subjects == {subject_of(named), subject_of(other)}


async def test_every_follower_hears_everything(bus: Bus, bus_factory: BusFactory):
    other = await bus_factory("labeler")
    recorders = [Recorder(), Recorder(), Recorder()]
    async with (
        run_during(bus.follow("test", f"{FLOW}.>", recorders[0])),
        run_during(other.follow("test", f"{FLOW}.>", recorders[1])),
        run_during(other.follow("test", f"{FLOW}.>", recorders[2])),
    ):
        await bus.publish(make_event())
        await wait_until(lambda: all(recorder.subjects == {subject("web-1")} for recorder in recorders))


async def test_whoever_follows_before_the_stream_exists_begins_when_it_does(bus_factory: BusFactory):
    early, watcher = await bus_factory("labeler"), await bus_factory("watcher")
    recorder = Recorder()
    async with run_during(early.follow("test", f"{FLOW}.>", recorder)):
        await wait_until(lambda: bool(recorder.disconnects))
        assert recorder.opened == []
        stream_id = await watcher.provision((NODES,), max_bytes=MAX_BYTES)
        await wait_until(lambda: recorder.is_caught_up)
        assert recorder.opened[0].stream_id == stream_id
        assert early.stream_id == stream_id


async def test_a_defect_in_a_follower_ends_its_following_loudly(bus: Bus):
    class Broken(Recorder):
        def apply(self, message: Message) -> None:
            raise ZeroDivisionError("a defect")

    await bus.publish(make_event())
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(HANG_SECONDS):
            await bus.follow("test", f"{FLOW}.>", Broken())


# ---- close


async def test_after_close_nothing_is_published(bus: Bus):
    await bus.close()
    with pytest.raises(BusError):
        await bus.publish(make_event())


# ---- look


async def test_a_look_tells_what_waits_what_is_in_hand_and_what_comes_back(bus: Bus):
    looked = await bus.stats()
    assert (looked.messages, looked.dead_letters) == (0, 0)
    assert [queue.name for queue in looked.consumers] == [NODES.name]
    for name in ("web-1", "web-2", "web-3"):
        await bus.publish(make_event(name))
    await wait_until(lambda: is_queue(bus, (3, 0, 0)), "three wait")  # a server counts behind its answers
    worker = Worker(lambda message: Nak(60.0, "later") if "web-1" in message.subject else Ack())
    worker.gate.clear()
    async with worker.consume(bus, in_flight=2):
        await wait_until(lambda: worker.in_flight == 2, "two in hand")
        await wait_until(lambda: is_queue(bus, (1, 2, 0)), "two in hand, one waits")
        worker.gate.set()
        await wait_until(lambda: is_queue(bus, (0, 1, 0)), "one is parked")
    (queue,) = (await bus.stats()).consumers
    assert queue.delivered == 3
    parked = await bus.get_last(subject("web-1"))
    assert parked is not None
    assert queue.acknowledged_sequence < parked.sequence, "so readers find the oldest message that waits"
    await bus.publish(make_event("web-1", order=2))
    await wait_until(lambda: is_queue(bus, (1, 0, 0)), "what is replaced comes back no more")


async def test_a_look_tells_what_was_delivered_again_and_whether_somebody_consumes(bus: Bus):
    await bus.publish(make_event())
    worker = Worker(lambda message: Nak(60.0 if message.redelivered else 0.0, "later"))
    async with worker.consume(bus):
        await wait_until(lambda: is_queue(bus, (0, 1, 1)), "it was given twice")
        (queue,) = (await bus.stats()).consumers
        assert queue.waiting >= 1
        assert queue.delivered >= 2


async def test_a_look_tells_up_to_which_message_all_are_acknowledged(bus: Bus):
    sequences = [await bus.publish(make_event(name)) for name in ("web-1", "web-2")]
    worker = Worker()

    async def is_acknowledged() -> bool:
        (queue,) = (await bus.stats()).consumers
        return queue.acknowledged_sequence >= sequences[1]

    assert not await is_acknowledged()
    async with worker.consume(bus):
        await wait_until(is_acknowledged, "both are acknowledged")


async def test_a_look_counts_the_dead_letters_that_lie_and_measures_the_stream(bus: Bus):
    for name in ("web-1", "web-2"):
        await bus.publish(a_dead_letter(name))
    await bus.publish(make_event())
    looked = await bus.stats()
    assert (looked.messages, looked.dead_letters) == (3, 2)
    assert 0 < looked.bytes < MAX_BYTES
    await bus.publish(a_dead_letter("web-1"))
    assert (await bus.stats()).dead_letters == 2, "one of a subject lies, the last"


async def test_where_there_is_no_stream_there_is_nothing_to_look_at(bus_factory: BusFactory):
    with pytest.raises(NoStream):
        await (await bus_factory()).stats()


def a_dead_letter(name: str) -> DeadLetter:
    return DeadLetter(
        service="labeler",
        kind="node",
        name=name,
        subject=subject(name),
        sequence=1,
        reason="unreadable",
        payload="",
        at=NOW,
    )


async def queue_of(bus: Bus) -> tuple[int, int, int]:
    (queue,) = (await bus.stats()).consumers
    return queue.pending, queue.unacknowledged, queue.redelivered


async def is_queue(bus: Bus, wanted: tuple[int, int, int]) -> bool:
    return await queue_of(bus) == wanted
