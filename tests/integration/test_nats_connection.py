"""One connection to a real nats-server: what comes late, or from a hostile publisher, ends nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.protocol import BusError, UnreadablePayload
from libs.common.contract.subjects import subject_of
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import Worker, make_event, wait_until


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[Connection]:
    access = NatsAccess(servers=(server.url,), service="watcher", nkey_seed_file=None, tls_ca_file=None)
    connection = await Connection.open(access, server.url, seconds=5.0, on_violation=lambda text: None)
    try:
        yield connection
    finally:
        await connection.abort("the test is over")


async def test_an_answer_to_a_ping_that_nobody_waits_for_any_more_does_not_end_the_connection(
    nats_server: NatsServer,
):
    async with connected(nats_server) as connection:
        nats_server.pause()
        with pytest.raises(BusError, match="ping"):
            await connection.round_trip(0.2)
        nats_server.resume()
        await connection.round_trip(5.0)  # behind the late answer
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
