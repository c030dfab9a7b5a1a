"""Followers of a real nats-server, and publishers that expect a sequence of it."""

import asyncio
import time

import msgspec
import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError, StreamPosition, WrongLastSequence
from libs.common.contract.subjects import ENRICHED_NODE, FLOW, LEADING, STREAM
from libs.testbed.nats_server import NatsServer
from tests.builders import make_leading
from tests.bus_actors import MAX_BYTES, NODES, Recorder, Worker, make_event, run_during, wait_until
from tests.integration.conftest import QUICK, ConnectBus, operating

EVERYTHING = f"{FLOW}.>"


async def ephemerals(server: NatsServer) -> set[str]:
    async with operating(server) as operator:
        return {info.name for info in await operator.consumers_info(STREAM)} - {NODES.name}


async def test_who_has_long_waited_for_a_stream_follows_it_as_soon_as_it_is_there(connect_bus: ConnectBus):
    patient = msgspec.structs.replace(QUICK, retry_first=3600.0, follow_retry_cap=3600.0)
    watcher, other = await connect_bus(timing=patient), await connect_bus("labeler", timing=patient)
    provisioner, waiter = Recorder(), Recorder()
    async with (
        run_during(watcher.follow("watcher", EVERYTHING, provisioner)),
        run_during(other.follow("labeler", EVERYTHING, waiter)),
    ):
        await wait_until(lambda: bool(provisioner.disconnects and waiter.disconnects))
        await watcher.provision((NODES,), max_bytes=MAX_BYTES)
        await wait_until(lambda: provisioner.is_caught_up and waiter.is_caught_up)


async def test_a_replay_of_large_messages_takes_several_pulls_and_one_connection(nats_bus: NatsBus):
    await nats_bus.provision((NODES,), max_bytes=128 * 1024 * 1024)
    for number in range(200):  # 40 MB: more than two pulls may fetch
        await nats_bus.publish(make_event(f"web-{number}", uid="u" * 200_000))
    recorder = Recorder()
    async with run_during(nats_bus.follow("test", EVERYTHING, recorder)):
        await wait_until(lambda: recorder.is_caught_up)
    assert len(recorder.subjects) == 200
    assert not recorder.disconnects


async def test_a_stream_replaced_between_two_heartbeats_is_noticed(
    nats_bus: NatsBus, nats_server: NatsServer
):
    recorder = Recorder()
    async with run_during(nats_bus.follow("test", EVERYTHING, recorder)):
        await wait_until(lambda: recorder.is_caught_up)
        async with operating(nats_server) as operator:
            await operator.delete_stream(STREAM)
            second = await nats_bus.provision((NODES,), max_bytes=MAX_BYTES)
        await nats_bus.publish(make_event("web-2"))
        await wait_until(lambda: recorder.subjects == {f"{ENRICHED_NODE}.web-2"})
        assert recorder.opened[-1].stream_id == second


async def test_a_killed_server_comes_back_with_its_stream_and_is_followed_again(
    nats_bus: NatsBus, nats_server: NatsServer
):
    recorder = Recorder()
    async with run_during(nats_bus.follow("test", EVERYTHING, recorder)):
        for name in ("web-1", "b", "c.d"):
            await nats_bus.publish(make_event(name))
        await wait_until(lambda: len(recorder.messages) == 3)
        before = recorder.messages.copy()
        await nats_server.kill()
        await wait_until(lambda: bool(recorder.disconnects))
        await nats_server.restart()
        await wait_until(lambda: recorder.is_caught_up)
        assert recorder.messages == before
    assert {opened.stream_id for opened in recorder.opened} == {nats_bus.stream_id}
    with pytest.raises(WrongLastSequence):
        await nats_bus.publish(make_event(order=2), expected_sequence=0)
    await nats_bus.publish(make_event(order=2), expected_sequence=before[0].sequence)


async def test_a_server_that_lost_everything_is_another_stream_for_followers_and_consumers(
    nats_bus: NatsBus, nats_server: NatsServer
):
    worker, recorder = Worker(), Recorder()
    async with worker.consume(nats_bus), run_during(nats_bus.follow("test", EVERYTHING, recorder)):
        await nats_bus.publish(make_event("web-1"))
        await wait_until(lambda: len(recorder.messages) == 1 and worker.list_names() == ["web-1"])
        await nats_server.wipe()
        await wait_until(lambda: nats_bus.stream_id == "", "the loss is noticed")
        assert any("does not exist" in problem for problem in nats_bus.problems())
        await nats_bus.provision((NODES,), max_bytes=MAX_BYTES)
        await wait_until(lambda: recorder.is_caught_up)
        assert recorder.messages == []
        await nats_bus.publish(make_event("web-2"))
        await wait_until(lambda: worker.list_names() == ["web-1", "web-2"])
        await wait_until(lambda: nats_bus.problems() == ())
    assert recorder.opened[0].stream_id != recorder.opened[-1].stream_id


async def test_idleness_is_no_loss(nats_bus: NatsBus, caplog: pytest.LogCaptureFixture):
    worker, recorder = Worker(), Recorder()
    async with worker.consume(nats_bus), run_during(nats_bus.follow("test", EVERYTHING, recorder)):
        await nats_bus.publish(make_event("web-1"))
        await wait_until(lambda: recorder.is_caught_up and worker.list_names() == ["web-1"])
        await asyncio.sleep(6)  # the fact under test is that nothing happens: past silence and expiry
        assert nats_bus.problems() == ()
        await nats_bus.publish(make_event("web-2"))
        await wait_until(lambda: len(recorder.messages) == 2 and worker.list_names() == ["web-1", "web-2"])
    assert (recorder.disconnects, len(recorder.opened)) == ([], 1)
    assert "consuming stopped, will retry" not in caplog.messages


async def test_a_deleted_consumer_is_made_anew_and_none_is_left_behind(
    nats_bus: NatsBus, nats_server: NatsServer
):
    recorder = Recorder()
    await nats_bus.publish(make_event())
    async with run_during(nats_bus.follow("test", EVERYTHING, recorder)):
        for times in range(1, 4):
            await wait_until(lambda n=times: len(recorder.opened) == n and recorder.is_caught_up)  # type: ignore[misc]
            (name,) = await ephemerals(nats_server)
            assert name.startswith("watcher-")
            async with operating(nats_server) as operator:
                await operator.delete_consumer(STREAM, name)
        await wait_until(lambda: len(recorder.opened) == 4 and recorder.is_caught_up)
        assert len(await ephemerals(nats_server)) == 1
    assert await ephemerals(nats_server) == set()
    assert recorder.subjects == {f"{ENRICHED_NODE}.web-1"}


async def test_caught_up_means_that_no_subject_is_missing_however_fast_they_are_refreshed(
    nats_bus: NatsBus, connect_bus: ConnectBus
):
    names = [f"web-{n}.example.org" for n in range(1500)]
    await asyncio.gather(*(nats_bus.publish(make_event(name)) for name in names))
    expected = {f"{ENRICHED_NODE}.{name}" for name in names}

    class Checker(Recorder):
        missing: set[str] | None = None

        def finish_replay(self) -> None:
            super().finish_replay()
            self.missing = expected - self.subjects

    async def refresh() -> None:
        order = 1
        while True:
            order += 1
            for start in range(0, len(names), 100):
                await asyncio.gather(
                    *(nats_bus.publish(make_event(name, order=order)) for name in names[start : start + 100])
                )

    follower = await connect_bus("labeler")
    async with run_during(refresh()):
        for _ in range(3):
            checker = Checker()
            async with run_during(follower.follow("test", EVERYTHING, checker)):
                await wait_until(lambda c=checker: c.is_caught_up)  # type: ignore[misc]
            assert checker.missing == set()
            sequences = [message.sequence for message in checker.messages]
            assert sequences == sorted(sequences)


async def test_what_ages_out_before_it_is_delivered_does_not_delay_completeness(nats_bus: NatsBus):
    """No message then says that nothing is pending any more."""

    class Busy(Recorder):
        def start_replay(self, position: StreamPosition) -> None:
            super().start_replay(position)
            # Blocks on purpose: the consumer exists, and its only message expires undelivered.
            time.sleep(1.3)

    await nats_bus.publish(make_event("fading"), ttl_seconds=1)
    recorder = Busy()
    async with run_during(nats_bus.follow("test", EVERYTHING, recorder)):
        await wait_until(lambda: recorder.is_caught_up)
    assert recorder.messages == []
    assert recorder.disconnects == []


WEB_1 = f"{ENRICHED_NODE}.web-1"


async def test_what_aged_out_while_the_server_was_down_leaves_nothing_to_expect(
    nats_bus: NatsBus, nats_server: NatsServer
):
    old = await nats_bus.publish(make_leading(), ttl_seconds=1)
    await nats_server.kill()
    await nats_server.restart()

    async def gone() -> bool:
        return await nats_bus.get_last(LEADING) is None

    await wait_until(gone, "expired")
    with pytest.raises(WrongLastSequence):
        await nats_bus.publish(make_leading(), expected_sequence=old, ttl_seconds=1)
    await nats_bus.publish(make_leading(), expected_sequence=0, ttl_seconds=1)


async def test_no_message_id_is_sent_so_the_same_words_are_stored_again(nats_bus: NatsBus):
    assert [await nats_bus.publish(make_event(order=order)) for order in (1, 2, 1)] == [1, 2, 3]


async def test_a_publish_whose_acknowledgement_was_lost_is_recognised_as_ones_own(
    connect_bus: ConnectBus, nats_server: NatsServer
):
    impatient = await connect_bus("metadata", timing=msgspec.structs.replace(QUICK, publish_deadline=3.0))
    stream_id = await impatient.provision((NODES,), max_bytes=MAX_BYTES)
    publisher = OrderedPublisher(impatient)
    word = make_event(stream_id=stream_id)
    nats_server.child.pause()
    with pytest.raises(BusError):
        await publisher.publish(word)
    nats_server.child.resume()

    async def stored() -> bool:
        return await impatient.get_last(WEB_1) is not None

    await wait_until(stored, "what the frozen server had already been sent")
    with pytest.raises(WrongLastSequence):
        await impatient.publish(word, expected_sequence=0)
    assert await publisher.publish(word) is PublishOutcome.PUBLISHED
    message = await impatient.get_last(WEB_1)
    assert message is not None
    assert message.sequence == 1, "stored once, not twice"
