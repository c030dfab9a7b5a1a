"""NATS is down, frozen or replaced: everything ends by its deadline, says why, and comes back by itself."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.connection_supervisor import ConnectionSupervisor
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.protocol import BusError, BusHooks
from libs.common.contract.subjects import FLOW
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import MAX_BYTES, NODES, Recorder, Worker, make_event, run_during, wait_until
from tests.integration.conftest import IMPATIENT, QUICK, ConnectBus

FROZEN = pytest.mark.parametrize("timing", [IMPATIENT], ids=["impatient"])


async def test_a_nats_that_is_down_at_the_start_is_a_problem_in_words_and_no_error(
    connect_bus: ConnectBus, nats_server: NatsServer
):
    await nats_server.kill()
    bus = await connect_bus(timing=msgspec.structs.replace(QUICK, publish_deadline=3.0))
    (problem,) = bus.problems()
    assert problem == f"NATS at {nats_server.url}: connection refused, retrying every 0.3 s"
    with pytest.raises(BusError, match="connection refused"):
        await bus.publish(make_event())
    await nats_server.restart()
    await bus.provision((NODES,), max_bytes=MAX_BYTES)
    await bus.publish(make_event())
    assert bus.problems() == ()


async def test_a_connection_that_is_made_after_the_close_is_ended_although_no_cancellation_arrives(
    nats_server: NatsServer,
):
    access = NatsAccess(servers=(nats_server.url,), service="watcher")
    opened: list[None] = []
    hooks = BusHooks(connected=lambda: opened.append(None))
    link = ConnectionSupervisor(access, timing=msgspec.structs.replace(QUICK, connect=30.0), hooks=hooks)
    nats_server.child.pause()
    running = asyncio.create_task(link.run())
    await asyncio.sleep(0)  # it connects, and the server does not greet it
    link.close()
    nats_server.child.resume()
    async with asyncio.timeout(HANG_SECONDS):
        await running
    assert opened == []


async def test_a_name_that_does_not_resolve_is_told(connect_bus: ConnectBus):
    bus = await connect_bus(servers=("nats://no-such-host.invalid:4222",))
    (problem,) = bus.problems()
    assert "no-such-host.invalid" in problem
    assert "not known" in problem or "resolution" in problem


async def test_a_publish_waits_out_a_short_outage(nats_bus: NatsBus, nats_server: NatsServer):
    await nats_server.kill()
    await wait_until(lambda: nats_bus.problems() != ())
    publishing = asyncio.create_task(nats_bus.publish(make_event()))
    await nats_server.restart()
    assert await publishing == 1


@FROZEN
async def test_a_frozen_server_with_a_backlog_blocks_nobody_beyond_the_deadline_and_is_found_again(
    nats_bus: NatsBus, nats_server: NatsServer
):
    worker, recorder = Worker(), Recorder()
    async with worker.consume(nats_bus), run_during(nats_bus.follow("test", f"{FLOW}.>", recorder)):
        await wait_until(lambda: recorder.is_caught_up)
        nats_server.child.pause()
        backlog = [
            nats_bus.publish(make_event(f"web-{n}", uid="u" * 50_000)) for n in range(400)
        ]  # 20 MB: more than any socket buffer
        async with asyncio.timeout(HANG_SECONDS):  # the deadline of a publish is 3 s
            results = await asyncio.gather(*backlog, return_exceptions=True)
        assert all(isinstance(result, BusError) for result in results)
        assert nats_bus.problems() != ()
        assert recorder.disconnects
        nats_server.child.resume()
        await wait_until(lambda: nats_bus.problems() == ())
        await nats_bus.publish(make_event("after"))
        await wait_until(lambda: "after" in worker.list_names())
        await wait_until(lambda: recorder.is_caught_up and recorder.messages[-1].event == make_event("after"))


@FROZEN
async def test_a_frozen_server_is_left_for_a_healthy_one_although_a_backlog_is_stuck(
    connect_bus: ConnectBus, nats_server: NatsServer, tmp_path: Path
):
    async with NatsServer.start(tmp_path / "other") as other:
        await other.kill()
        bus = await connect_bus(servers=(nats_server.url, other.url))
        first = await bus.provision((NODES,), max_bytes=MAX_BYTES)
        await other.restart()
        nats_server.child.pause()
        backlog = [bus.publish(make_event(f"web-{n}", uid="u" * 50_000)) for n in range(300)]
        await asyncio.gather(*backlog, return_exceptions=True)

        async def moved() -> bool:
            try:
                return await bus.provision((NODES,), max_bytes=MAX_BYTES) != first
            except BusError:
                return False

        await wait_until(moved, "provisioned on the healthy server")
        await bus.publish(make_event("web-1"))
        assert bus.problems() == ()
        nats_server.child.resume()


@FROZEN
async def test_a_connection_that_falls_silent_without_any_traffic_is_replaced(
    connect_bus: ConnectBus, nats_server: NatsServer
):
    events: list[str] = []
    hooks = BusHooks(connected=lambda: events.append("up"), disconnected=events.append)
    bus = await connect_bus(hooks=hooks)
    nats_server.child.pause()
    await wait_until(lambda: len(events) == 2)
    assert "no answer to a ping" in events[1]
    # the next try may have failed by now, in words of its own
    assert any("retrying" in problem for problem in bus.problems())
    nats_server.child.resume()
    await wait_until(lambda: len(events) == 3)
    assert events[2] == "up"


@FROZEN
async def test_close_ends_within_seconds_and_leaves_no_task_whatever_the_server_does(
    connect_bus: ConnectBus, nats_server: NatsServer
):
    for trouble in ("none", "killed", "frozen"):
        before = asyncio.all_tasks()
        bus = await connect_bus()
        await bus.provision((NODES,), max_bytes=MAX_BYTES)
        worker, recorder = Worker(), Recorder()
        consuming = asyncio.create_task(bus.consume(NODES, worker.handle, in_flight=4))
        following = asyncio.create_task(bus.follow("test", f"{FLOW}.>", recorder))
        await wait_until(lambda r=recorder: r.is_caught_up)  # type: ignore[misc]
        if trouble == "killed":
            await nats_server.kill()
        elif trouble == "frozen":
            nats_server.child.pause()
        for task in (consuming, following):
            task.cancel()
        async with asyncio.timeout(60):
            results = await asyncio.gather(consuming, following, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            await bus.close()
        assert asyncio.all_tasks() - before == set()
        if trouble == "killed":
            await nats_server.restart()
    nats_server.child.resume()


async def test_handlers_that_do_not_finish_in_time_are_ended_and_their_messages_handed_back(
    connect_bus: ConnectBus, nats_server: NatsServer
):
    hasty = await connect_bus("labeler", timing=msgspec.structs.replace(QUICK, finish_handlers=0.2))
    await hasty.provision((NODES,), max_bytes=MAX_BYTES)
    stuck, other = Worker(), Worker()
    stuck.gate.clear()
    async with stuck.consume(hasty) as task:
        await hasty.publish(make_event())
        await wait_until(lambda: stuck.in_flight == 1)
        task.cancel()
        await wait_until(task.done)
    assert stuck.finished == []
    async with other.consume(hasty):
        await wait_until(lambda: len(other.finished) == 1)
    assert other.seen[0].redelivered
