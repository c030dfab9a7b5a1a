"""Counts and sizes of the stream and its durables, as the server reports them."""

import asyncio

from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.jetstream import NoConsumer, fetch_consumer_info, fetch_stream_info_for
from libs.common.bus.nats.provision import read_limit
from libs.common.bus.protocol import ConsumerStats, StreamStats
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import DEAD_LETTERS


async def fetch_stats(connection: Connection) -> StreamStats:
    """Send one small request for the stream and one per durable at once. Raises NoStream or BusError."""
    info, queues = await asyncio.gather(
        fetch_stream_info_for(connection, f"{DEAD_LETTERS}.>"),
        asyncio.gather(*(_queue(connection, durable.name) for durable in DURABLES)),
    )
    return StreamStats(
        messages=info.state.messages,
        bytes=info.state.bytes,
        max_bytes=read_limit(info),
        dead_letters=info.total,
        consumers=tuple(queue for queue in queues if queue is not None),
    )


async def _queue(connection: Connection, name: str) -> ConsumerStats | None:
    try:
        info = await fetch_consumer_info(connection, name)
    except NoConsumer:
        return None
    return ConsumerStats(
        name=name,
        pending=info.num_pending,
        unacknowledged=info.num_ack_pending,
        redelivered=info.num_redelivered,
        waiting=info.num_waiting,
        delivered=info.delivered.consumer_seq,
    )
