"""What the conformance suite cannot see of the memory bus without waiting for a minute."""

import asyncio

import msgspec

from libs.common.bus.delivery import RETRY_CAP_SECONDS, Disposition
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import Message, UnreadablePayload
from libs.common.contract.events import encode
from libs.common.contract.subjects import SNAPSHOT, subject_of
from tests.builders import NOW, make_node, make_node_observed
from tests.bus_actors import MAX_BYTES, NODES, Worker, make_event, wait_until


async def test_a_message_whose_handler_raised_comes_back_after_a_minute():
    def judge(message: Message) -> Disposition:
        raise ZeroDivisionError("a defect")

    server = MemoryServer()
    bus = MemoryBus(server)
    await bus.provision((NODES,), max_bytes=MAX_BYTES)
    work = server.durables[NODES.name]
    async with Worker(judge).consume(bus):
        began = asyncio.get_running_loop().time()
        await bus.publish(make_event())
        await wait_until(lambda: work.next_due() is not None)
        due = work.next_due()
        assert due is not None
        assert RETRY_CAP_SECONDS <= due - began < RETRY_CAP_SECONDS + 10


async def test_a_durable_made_anew_leaves_nothing_of_the_old_one_behind():
    server = MemoryServer()
    bus = MemoryBus(server)
    for filter_subject in (NODES.filter, SNAPSHOT, NODES.filter, NODES.filter):
        durable = msgspec.structs.replace(NODES, filter=filter_subject)
        await bus.provision((durable,), max_bytes=MAX_BYTES)
    assert server.stream is not None
    assert len(server.stream._backlogs) == 1


async def test_whoever_stops_following_is_not_fed_any_more():
    server = MemoryServer()
    bus = MemoryBus(server)
    await bus.provision((), max_bytes=MAX_BYTES)
    task = asyncio.create_task(bus.follow("test", NODES.filter, _Deaf()))
    await wait_until(lambda: server.stream is not None and len(server.stream._backlogs) == 1)
    task.cancel()
    await asyncio.wait([task])
    assert server.stream is not None
    assert server.stream._backlogs == []


async def test_readers_share_the_event_of_the_publisher():
    bus = MemoryBus(MemoryServer())
    await bus.provision((), max_bytes=MAX_BYTES)
    event = make_node_observed(make_node(labels={"zone": "a"}))
    await bus.publish(event)
    first, second = [await bus.get_last(subject_of(event)) for _ in range(2)]
    assert first is not None
    assert first is second
    assert first.event is event


async def test_readers_receive_what_the_payload_of_the_event_contains():
    bus = MemoryBus(MemoryServer())
    await bus.provision((), max_bytes=MAX_BYTES)
    naive = msgspec.structs.replace(make_node_observed(make_node()), observed_at=NOW.replace(tzinfo=None))
    await bus.publish(naive)
    last = await bus.get_last(subject_of(naive))
    assert last is not None
    assert isinstance(last.event, UnreadablePayload)
    assert last.event.payload == encode(naive)


class _Deaf:
    def start_replay(self, position: object) -> None: ...
    def apply(self, message: Message) -> None: ...
    def finish_replay(self) -> None: ...
    def mark_caught_up(self) -> None: ...
    def mark_disconnected(self, reason: str) -> None: ...
