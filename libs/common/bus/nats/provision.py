"""Makes the stream and its durables, or repairs what differs. Only the watcher has the right to."""

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
from libs.common.bus.protocol import MAX_MESSAGE_AGE, BusError, NoStream
from libs.common.bus.stream_size import (
    HEADROOM_BYTES,
    candidate_limits,
    grow_limit,
    initial_limit,
    subtract_headroom,
)
from libs.common.contract.service_spec import Durable
from libs.common.contract.subjects import ALL_SUBJECTS, STREAM

# Above the number of live objects: a parked retry counts until it is redelivered, and at the limit the
# healthy get nothing any more.
_MAX_ACK_PENDING: Final = 20_000


def stream_config(max_bytes: int, *, replicas: int = 0) -> dict[str, Any]:
    """A coalescing work queue and a table of last known state in one. See docs/design.md.

    `replicas` 0: on how many servers it lies is not ours to say.
    """
    said = {"num_replicas": replicas} if replicas else {}
    return said | {
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
    """A durable that, made anew, replays the present state of every object."""
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
    """Create or repair; what is right already is only read. Raises BusError, with the server's reason.

    A new stream, and one that is more than half full, grows as far as the server has room.
    """
    try:
        stream = await fetch_stream_info(connection)
    except NoStream:
        # The server may have no room for all of it: the smallest limit first, which then grows below.
        smallest = stream_config(initial_limit(max_bytes), replicas=replicas)
        stream = await call(connection, f"STREAM.CREATE.{STREAM}", smallest, StreamInfo)
    wanted = stream_config(grow_limit(max_bytes, stream.state.bytes), replicas=replicas)
    if _differs(stream.config, wanted):
        # What we do not speak of stays as it is: placement is the operator's, and replicas, unless told.
        stream = await _repair_stream(connection, {**stream.config, **wanted}, read_limit(stream))
    for durable in durables:
        await _provision_durable(connection, durable_config(durable))
    return stream


@asynccontextmanager
async def headroom(connection: Connection, needed: int) -> AsyncIterator[int]:
    """While it is open, the stream has room for that many bytes. Yields the used bytes of the headroom.

    Raises NoStream or BusError.
    """
    stream = await fetch_stream_info(connection)
    limit = subtract_headroom(read_limit(stream))
    opened = max(limit, stream.state.bytes) + needed
    await _update_stream(connection, {**stream.config, "max_bytes": opened})
    try:
        yield max(0, stream.state.bytes - limit)
    finally:
        stream = await fetch_stream_info(connection)
        if read_limit(stream) == opened:  # otherwise another leader or an operator has set it meanwhile
            await _update_stream(connection, {**stream.config, "max_bytes": limit})


def read_limit(stream: StreamInfo) -> int:
    """How many bytes the stream may hold; below 0 = without limit."""
    return int(stream.config.get("max_bytes", -1))


async def _repair_stream(connection: Connection, config: Mapping[str, Any], present: int) -> StreamInfo:
    """With the largest limit, up to that of `config`, for which the server has room."""
    if 0 <= present < config["max_bytes"]:
        for limit in candidate_limits(config["max_bytes"], present):
            try:
                # The server reserves what a limit allows: the headroom must still be there when it is needed.
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
            f"stream {STREAM} is not as it must be and cannot be changed ({error}); "
            "delete it, it is made anew and holds nothing that Kubernetes does not"
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
        # Where to start and what kind of consumer it is cannot be updated. Made anew it replays all, which
        # handlers are made for.
        await delete_consumer(connection, wanted["name"])
        await create_or_update_consumer(connection, wanted)


def _differs(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return any(present.get(key) != value for key, value in wanted.items())
