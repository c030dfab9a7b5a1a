"""One connection to a real nats-server: what comes late, or from a hostile publisher, ends nothing."""

import asyncio

import nats
import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import BusError, UnreadablePayload
from libs.common.contract.subjects import ENRICHED_NODE, FLOW, subject_of
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import Recorder, Worker, make_event, run_during, wait_until
from tests.bus_server import connected


async def test_an_answer_to_a_ping_that_nobody_waits_for_any_more_does_not_end_the_connection(
    nats_server: NatsServer,
):
    async with connected(nats_server.port) as connection:
        nats_server.child.pause()
        with pytest.raises(BusError, match="ping"):
            await connection.round_trip(0.2)
        nats_server.child.resume()
        await connection.round_trip(HANG_SECONDS)  # behind the late answer
        assert not connection.closed.done()


async def test_a_publisher_cannot_speak_in_the_servers_name(nats_bus: NatsBus, nats_server: NatsServer):
    subject = subject_of(make_event("poisoned"))
    publisher = await nats.connect(nats_server.url)
    block = b"NATS/1.0 404 No Messages\r\n\r\n"
    await publisher._send_command(
        b"HPUB %s %d %d\r\n%s\r\n" % (subject.encode(), len(block), len(block), block)
    )
    await publisher.flush()
    await publisher.close()

    async def is_stored_unreadable() -> bool:
        found = await nats_bus.get_last(subject)
        return found is not None and isinstance(found.event, UnreadablePayload)

    await wait_until(is_stored_unreadable, "the stream has taken it: a plain publish waits for no answer")
    worker = Worker()
    async with worker.consume(nats_bus):
        await wait_until(lambda: bool(worker.list_names()), "delivered")


@pytest.mark.parametrize(
    ("token", "block"),
    [
        (b"\xff\xfe", b"NATS/1.0\r\n\r\n"),
        (b"status", b"NATS/1.0 404 \xff\xfe\r\n\r\n"),
        (b"short", b"NATS/1.0"),
        (b"shorter", b"\xff"),
        (b"names", b"NATS/1.0\r\n\xff: \xff\r\n\r\n"),
    ],
    ids=["subject", "status", "short", "shorter", "names"],
)
async def test_bytes_that_are_no_text_do_not_hide_the_messages_behind_them(
    nats_bus: NatsBus, nats_server: NatsServer, token: bytes, block: bytes
):
    """The stream keeps the message: a client that fails at it fails again after each reconnection."""
    subject = ENRICHED_NODE.encode() + b"." + token
    await _publish_bytes(nats_server, subject, block)
    worker, recorder = Worker(), Recorder()
    async with worker.consume(nats_bus), run_during(nats_bus.follow("test", f"{FLOW}.>", recorder)):
        await wait_until(lambda: recorder.is_caught_up and len(recorder.messages) == 1)
        await nats_bus.publish(make_event("behind"))
        await wait_until(lambda: "behind" in worker.list_names())
        await wait_until(lambda: len(recorder.messages) == 2)
    assert isinstance(recorder.messages[0].event, UnreadablePayload)
    assert (recorder.disconnects, len(worker.seen)) == ([], 2)


async def _publish_bytes(server: NatsServer, subject: bytes, block: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        await reader.readline()
        options = b'{"headers":true,"verbose":false}'
        sizes = b"%d %d" % (len(block), len(block) + 1)
        writer.write(b"CONNECT %b\r\nHPUB %b %b\r\n%bx\r\nPING\r\n" % (options, subject, sizes, block))
        assert await reader.readline() == b"PONG\r\n"
    finally:
        writer.close()
        await writer.wait_closed()


async def test_what_the_server_would_end_the_connection_for_is_not_sent(nats_server: NatsServer):
    """The server counts the headers, too."""
    limit = 1024 * 1024  # nats-server's default
    headers = {"traceparent": "00-0-0-01"}
    block = len(b"NATS/1.0\r\ntraceparent: 00-0-0-01\r\n\r\n")
    async with connected(nats_server.port) as connection:
        await connection.send("any", bytes(limit - block), headers=headers)
        with pytest.raises(BusError, match="maximum payload"):
            await connection.send("any", bytes(limit - block + 1), headers=headers)
        await connection.round_trip(HANG_SECONDS)
        assert not connection.closed.done()
