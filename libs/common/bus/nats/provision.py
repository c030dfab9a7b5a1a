"""Creates or repairs the stream and its durables. Only the watcher has the permission."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.jetstream import (
    NANOSECONDS,
    JetStreamError,
    NoConsumer,
    NoStorage,
    StreamInfo,
    call,
    create_or_update_consumer,
    delete_consumer,
    fetch_consumer_info,
    fetch_stream_info,
)
from libs.common.bus.protocol import BusError, NoStream
from libs.common.bus.stream_limits import (
    HEADROOM_BYTES,
    MAX_MESSAGE_AGE,
    candidate_limits,
    grow_limit,
    initial_limit,
    subtract_headroom,
)
from libs.common.contract.services import Durable
from libs.common.contract.subjects import ALL_SUBJECTS, STREAM

# More than the number of live objects. A message that waits for a retry counts until its redelivery, and
# at the limit no other message is delivered.
_MAX_ACK_PENDING: Final = 20_000


def stream_config(max_bytes: int, *, replicas: int = 0) -> dict[str, Any]:
    """Return the configuration of the stream, which is a work queue and a table of last states in one.

    `replicas` 0 leaves the number of replicas to the operator. See docs/design.md.
    """
    chosen = {"num_replicas": replicas} if replicas else {}
    return chosen | {
        "name": STREAM,
        "subjects": [ALL_SUBJECTS],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "max_age": int(MAX_MESSAGE_AGE.total_seconds()) * NANOSECONDS,
        "max_bytes": max_bytes,
        "allow_direct": True,
        "allow_msg_ttl": True,
    }


def durable_config(durable: Durable) -> dict[str, Any]:
    """Return the configuration of a durable, which replays the last state of each object when created."""
    return {
        "name": durable.name,
        "durable_name": durable.name,
        "deliver_policy": "last_per_subject",
        "filter_subject": durable.filter,
        "ack_policy": "explicit",
        "ack_wait": int(durable.ack_wait_seconds * NANOSECONDS),
        "max_deliver": -1,
        "max_ack_pending": _MAX_ACK_PENDING,
        "replay_policy": "instant",
    }


async def provision(
    connection: Connection, durables: tuple[Durable, ...], max_bytes: int, *, replicas: int = 0
) -> StreamInfo:
    """Create or repair stream and durables; only read what is right. Raises BusError with the reason.

    A new stream, and one that is more than half full, grows as far as the server has room.
    """
    try:
        stream = await fetch_stream_info(connection)
    except NoStream:
        # The server may lack room for the whole limit: create the smallest one, which grows below.
        smallest = stream_config(initial_limit(max_bytes), replicas=replicas)
        stream = await call(connection, f"STREAM.CREATE.{STREAM}", smallest, StreamInfo)
    wanted = stream_config(grow_limit(max_bytes, stream.state.bytes), replicas=replicas)
    if _differs(stream.config, wanted):
        # Other settings stay: placement belongs to the operator, and so do replicas unless configured here.
        stream = await _repair_stream(connection, {**stream.config, **wanted}, stream.max_bytes)
    for durable in durables:
        await _provision_durable(connection, durable_config(durable))
    return stream


@asynccontextmanager
async def headroom(connection: Connection, needed: int) -> AsyncIterator[int]:
    """Return a context in which the stream has room for `needed` bytes; yield the used bytes of the headroom.

    Raises NoStream or BusError.
    """
    stream = await fetch_stream_info(connection)
    limit = subtract_headroom(stream.max_bytes)
    opened = max(limit, stream.state.bytes) + needed
    await _update_stream(connection, {**stream.config, "max_bytes": opened})
    try:
        yield max(0, stream.state.bytes - limit)
    finally:
        stream = await fetch_stream_info(connection)
        if stream.max_bytes == opened:  # else another leader or an operator has changed it
            await _update_stream(connection, {**stream.config, "max_bytes": limit})


async def _repair_stream(connection: Connection, config: Mapping[str, Any], present: int) -> StreamInfo:
    """Update the stream with the largest limit up to that of `config` for which the server has room."""
    if 0 <= present < config["max_bytes"]:
        for limit in candidate_limits(config["max_bytes"], present):
            try:
                # The server reserves the limit: the headroom must be available when needed.
                await _update_stream(connection, {**config, "max_bytes": limit + HEADROOM_BYTES})
            except NoStorage:
                continue
            return await _update_stream(connection, {**config, "max_bytes": limit})
        config = {**config, "max_bytes": subtract_headroom(present)}
    return await _update_stream(connection, config)


async def _update_stream(connection: Connection, config: Mapping[str, Any]) -> StreamInfo:
    try:
        return await call(connection, f"STREAM.UPDATE.{STREAM}", config, StreamInfo)
    except NoStorage:
        raise
    except JetStreamError as error:
        raise BusError(
            f"stream {STREAM} has a wrong configuration that cannot be changed ({error}); "
            "delete it: the watcher creates it again from Kubernetes"
        ) from error


async def _provision_durable(connection: Connection, wanted: Mapping[str, Any]) -> None:
    try:
        present = await fetch_consumer_info(connection, wanted["name"])
    except NoConsumer:
        await create_or_update_consumer(connection, wanted)
        return
    if not _differs(present.config, wanted):
        return
    try:
        await create_or_update_consumer(connection, {**present.config, **wanted})
    except JetStreamError:
        # The start position and the type of a consumer cannot be updated. A recreated one replays all
        # messages, and handlers are idempotent.
        await delete_consumer(connection, wanted["name"])
        await create_or_update_consumer(connection, wanted)


def _differs(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return any(present.get(key) != value for key, value in wanted.items())
