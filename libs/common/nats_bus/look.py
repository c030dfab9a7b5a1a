"""How the stream and its durables stand, by what the server says of them."""

import asyncio

from libs.common.bus import Looked, QueueLook
from libs.common.nats_bus.connection import Connection
from libs.common.nats_bus.jetstream import NoConsumer, consumer_info, stream_info_about
from libs.common.nats_bus.provision import limit_of
from libs.common.subjects import DEAD
from libs.common.wiring import DURABLES


async def look(connection: Connection) -> Looked:
    """One small request for the stream and one per durable, at once. Raises NoStream or BusError."""
    info, queues = await asyncio.gather(
        stream_info_about(connection, f"{DEAD}.>"),
        asyncio.gather(*(_queue(connection, durable.name) for durable in DURABLES)),
    )
    return Looked(
        messages=info.state.messages,
        bytes=info.state.bytes,
        max_bytes=limit_of(info),
        dead=info.total,
        durables=tuple(queue for queue in queues if queue is not None),
    )


async def _queue(connection: Connection, name: str) -> QueueLook | None:
    try:
        info = await consumer_info(connection, name)
    except NoConsumer:
        return None
    return QueueLook(
        name=name,
        pending=info.num_pending,
        unacknowledged=info.num_ack_pending,
        redelivered=info.num_redelivered,
        waiting=info.num_waiting,
        delivered=info.delivered.consumer_seq,
    )
