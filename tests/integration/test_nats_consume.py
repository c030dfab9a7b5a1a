"""Shared consumption on a real server: what is parked, replaced, lost and found again."""

import asyncio

import msgspec
import pytest

from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.delivery import Ack, Disposition, Nak
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import Message
from libs.common.contract.events import DeadLetter
from libs.common.contract.subjects import DEAD_LETTERS, ENRICHED_NODE, STREAM
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import (
    MAX_BYTES,
    NODES,
    Worker,
    make_event,
    run_during,
    wait_until,
)
from tests.integration.conftest import ConnectBus, operating, put_raw
from tests.service_flow import make_dependencies


async def settled(server: NatsServer) -> bool:
    """Nothing waits and nothing is in hand, as the server counts."""
    async with operating(server) as operator:
        info = await operator.consumer_info(STREAM, NODES.name)
    return (info.num_pending, info.num_ack_pending) == (0, 0)


async def test_bytes_that_are_no_event_end_as_a_dead_letter(
    connect_bus: ConnectBus, nats_bus: NatsBus, nats_server: NatsServer
):
    labeler = await connect_bus("labeler")

    handled: list[Message] = []

    async def handle(message: Message) -> None:
        handled.append(message)

    wrapped = ConsumerMiddleware("labeler", "node", make_dependencies(labeler)).wrap(handle)
    async with run_during(labeler.consume(NODES, wrapped, in_flight=16)):
        await put_raw(nats_server, f"{ENRICHED_NODE}.web-1", b"\xff{not json" + b"x" * 5000)
        await put_raw(nats_server, f"{ENRICHED_NODE}.web-2", b'{"event": "NodeEnriched.v99"}')
        await nats_bus.publish(make_event("web-3"))
        await wait_until(lambda: [message.event for message in handled] == [make_event("web-3")])

        async def both_written() -> bool:
            return None not in [
                await labeler.get_last(f"{DEAD_LETTERS}.labeler.node.web-{n}") for n in (1, 2)
            ]

        await wait_until(both_written, "dead letters")
    letter = await labeler.get_last(f"{DEAD_LETTERS}.labeler.node.web-1")
    assert letter is not None
    assert isinstance(letter.event, DeadLetter)
    assert "not json" in letter.event.payload
    assert len(letter.event.payload) <= 4096
    assert "not an event of this schema" in letter.event.reason


async def test_a_parked_retry_survives_the_death_of_the_server(nats_bus: NatsBus, nats_server: NatsServer):
    # Whether the server had written the delay down or not when it died: ack_wait is the latest.
    durable = msgspec.structs.replace(NODES, ack_wait_seconds=1.5)
    await nats_bus.provision((durable,), max_bytes=MAX_BYTES)
    worker = Worker(lambda message: Ack() if message.redelivered else Nak(1.0, "down"))
    async with worker.consume(nats_bus, durable=durable):
        await nats_bus.publish(make_event())
        await wait_until(lambda: len(worker.finished) == 1)
        await nats_server.kill()
        await nats_server.restart()
        await wait_until(lambda: len(worker.finished) == 2)
        assert worker.seen[1].redelivered
        await wait_until(lambda: settled(nats_server))


async def test_a_deleted_consumer_is_noticed_and_replays_the_present_state_when_restored(
    nats_bus: NatsBus, nats_server: NatsServer
):
    worker = Worker()
    async with worker.consume(nats_bus):
        for name in ("web-1", "web-2"):
            await nats_bus.publish(make_event(name))
        await wait_until(lambda: len(worker.finished) == 2)
        async with operating(nats_server) as operator:
            await operator.delete_consumer(STREAM, NODES.name)
        await wait_until(lambda: any("labeler-nodes" in problem for problem in nats_bus.problems()))
        await nats_bus.publish(make_event("web-1", order=2))
        await nats_bus.provision((NODES,), max_bytes=MAX_BYTES)
        await wait_until(lambda: len(worker.finished) == 4)
        await wait_until(lambda: nats_bus.problems() == ())
    assert [message.event for message in worker.seen[2:]] == [
        make_event("web-2"),
        make_event("web-1", order=2),
    ]


async def test_a_message_handled_across_a_restart_is_settled_over_the_new_connection(
    nats_bus: NatsBus, nats_server: NatsServer
):
    worker = Worker()
    worker.gate.clear()
    async with worker.consume(nats_bus):
        await nats_bus.publish(make_event())
        await wait_until(lambda: worker.in_flight == 1)
        await nats_server.kill()
        await nats_server.restart()
        await wait_until(lambda: nats_bus.problems() == ())
        worker.gate.set()
        await wait_until(lambda: settled(nats_server))
    assert len(worker.seen) == 1


async def test_a_message_of_a_former_stream_is_not_settled_in_the_present_one(
    nats_bus: NatsBus, nats_server: NatsServer
):
    """Sequences begin at 1 again, so a late acknowledgement would settle another message."""
    former, present = make_event("former"), make_event("present")
    worker = Worker(
        lambda message: Nak(0.1, "again") if message.event == present and not message.redelivered else Ack()
    )
    worker.gate.clear()
    held = asyncio.Event()

    async def handle(message: Message) -> Disposition:
        if message.event == present:
            await held.wait()
        return await worker.handle(message)

    async with run_during(nats_bus.consume(NODES, handle, in_flight=4)):
        await nats_bus.publish(former)
        await wait_until(lambda: worker.in_flight == 1)
        async with operating(nats_server) as operator:
            await operator.delete_stream(STREAM)
            await nats_bus.provision((NODES,), max_bytes=MAX_BYTES)
            assert await nats_bus.publish(present) == 1

            async def is_delivered() -> bool:
                info = await operator.consumer_info(STREAM, NODES.name)
                return bool(info.num_ack_pending == 1)

            await wait_until(is_delivered)
            worker.gate.set()
            await wait_until(lambda: worker.list_names() == ["former"])
            await nats_bus.publish(make_event("behind"))
            await wait_until(lambda: "behind" in worker.list_names(), "acknowledgements are sent in order")
            held.set()
            await wait_until(lambda: worker.list_names().count("present") == 2, "the retry is not lost")
    assert worker.seen[-1].redelivered


async def test_a_consumer_whose_handlers_are_all_busy_notices_another_stream(
    nats_bus: NatsBus, nats_server: NatsServer, connect_bus: ConnectBus
):
    """It has no open pull by which the server could report it."""
    former, present = make_event("former"), make_event("present")
    busy, other = Worker(), Worker(lambda message: Ack() if message.redelivered else Nak(0.1, "again"))
    busy.gate.clear()
    other.gate.clear()
    second = await connect_bus("labeler")
    async with busy.consume(nats_bus, in_flight=1), operating(nats_server) as operator:
        await nats_bus.publish(former)
        await wait_until(lambda: busy.in_flight == 1)
        await operator.delete_stream(STREAM)
        await nats_bus.provision((NODES,), max_bytes=MAX_BYTES)
        async with other.consume(second):
            assert await nats_bus.publish(present) == 1
            await wait_until(lambda: other.in_flight == 1)
            busy.gate.set()
            await wait_until(lambda: len(busy.finished) == 1)
            await nats_bus.stats()  # behind the acknowledgement, if there is one
            other.gate.set()
            await wait_until(lambda: any(m.redelivered for m in (*busy.seen, *other.seen)))


async def test_a_consumer_of_a_process_that_knows_a_former_stream_binds_once(
    nats_bus: NatsBus, nats_server: NatsServer, connect_bus: ConnectBus, caplog: pytest.LogCaptureFixture
):
    """A second binding would lose the messages that the server sends to the first one, until `ack_wait`."""
    worker, second = Worker(), await connect_bus("labeler")
    await wait_until(lambda: second.stream_id == nats_bus.stream_id)
    async with operating(nats_server) as operator:
        await operator.delete_stream(STREAM)
    await nats_bus.provision((NODES,), max_bytes=MAX_BYTES)
    async with worker.consume(second):
        await wait_until(lambda: second.stream_id == nats_bus.stream_id)
        await nats_bus.publish(make_event())
        await wait_until(lambda: len(worker.finished) == 1)
    assert "consuming stopped, will retry" not in caplog.messages


async def test_whoever_stops_consuming_leaves_no_request_behind(nats_bus: NatsBus, nats_server: NatsServer):
    worker = Worker()
    async with worker.consume(nats_bus):
        await nats_bus.publish(make_event())
        await wait_until(lambda: len(worker.finished) == 1)
    async with operating(nats_server) as operator:

        async def unattended() -> bool:
            return bool((await operator.consumer_info(STREAM, NODES.name)).num_waiting == 0)

        await wait_until(unattended)
