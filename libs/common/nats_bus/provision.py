"""Makes the stream and its durables, or repairs what differs. Only the watcher has the right to."""

from collections.abc import Mapping
from typing import Any, Final

from libs.common.bus import BusError, Durable, NoStream
from libs.common.nats_bus.connection import Connection
from libs.common.nats_bus.jetstream import (
    NANOSECONDS,
    NoConsumer,
    Refused,
    StreamInfo,
    call,
    consumer_info,
    delete_consumer,
    stream_info,
    write_consumer,
)
from libs.common.subjects import ALL, STREAM

_MAX_AGE_SECONDS: Final = 3600
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
        "subjects": [ALL],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "max_age": _MAX_AGE_SECONDS * NANOSECONDS,
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
    """Create or repair; what is right already is only read. Raises BusError, with the server's reason."""
    wanted = stream_config(max_bytes, replicas=replicas)
    try:
        stream = await stream_info(connection)
    except NoStream:
        stream = await call(connection, f"STREAM.CREATE.{STREAM}", wanted, StreamInfo)
    if _differs(stream.config, wanted):
        # What we do not speak of stays as it is: placement is the operator's, and replicas, unless told.
        stream = await _update_stream(connection, {**stream.config, **wanted})
    for durable in durables:
        await _provision_durable(connection, durable_config(durable))
    return stream


async def _update_stream(connection: Connection, config: Mapping[str, Any]) -> StreamInfo:
    try:
        return await call(connection, f"STREAM.UPDATE.{STREAM}", config, StreamInfo)
    except Refused as error:
        raise BusError(
            f"stream {STREAM} is not as it must be and cannot be changed ({error}); "
            "delete it, it is made anew and holds nothing that Kubernetes does not"
        ) from error


async def _provision_durable(connection: Connection, wanted: Mapping[str, Any]) -> None:
    try:
        present = await consumer_info(connection, wanted["name"])
    except NoConsumer:
        await write_consumer(connection, wanted)
        return
    if not _differs(present.config, wanted):
        return
    try:
        await write_consumer(connection, {**present.config, **wanted})
    except Refused:
        # Where to start and what kind of consumer it is cannot be updated. Made anew it replays all, which
        # handlers are made for.
        await delete_consumer(connection, wanted["name"])
        await write_consumer(connection, wanted)


def _differs(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return any(present.get(key) != value for key, value in wanted.items())
