"""Follows the last message of each subject with an ephemeral consumer, recreated whenever it is lost."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from secrets import token_hex
from typing import Final

from libs.common.bus.nats.client import WireMessage
from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.connection_supervisor import ConnectionSupervisor
from libs.common.bus.nats.current_stream import CurrentStream
from libs.common.bus.nats.jetstream import (
    NANOSECONDS,
    NoConsumer,
    StreamInfo,
    create_or_update_consumer,
    decode_message,
    delete_consumer,
    fetch_stream_info,
    parse_delivery,
)
from libs.common.bus.nats.pull_subscription import PullSubscription
from libs.common.bus.protocol import BusError, Follower, FollowLag, StreamPosition

_BATCH: Final = 512


@dataclass(eq=False)
class FollowLoop:
    """One `follow` call."""

    link: ConnectionSupervisor
    name: str
    filter_subject: str
    follower: Follower
    _: KW_ONLY
    exclude: Callable[[str], bool]
    on_stream_info: Callable[[StreamInfo], None]
    stream: CurrentStream

    def __post_init__(self) -> None:
        self._caught_up = False
        self._expected = 1  # consumer sequences have no gaps: a gap means a lost message
        self._pending = 0
        self._delivered_at = 0  # nanoseconds since 1970; publication of the last delivered message

    async def run(self) -> None:
        """Follow until cancelled."""
        attempt = 0
        while True:
            self._caught_up = False
            another_stream = self.stream.changed
            try:
                reason = await self._session(await self.link.wait_for_connection())
            except BusError as error:
                reason = str(error)
            attempt = 1 if self._caught_up else attempt + 1
            self.follower.mark_disconnected(reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.link.backoff(attempt, self.link.timing.follow_retry_cap)):
                    await another_stream.wait()

    def lag(self) -> FollowLag:
        """Return what it has not received yet, by its last delivery."""
        is_known = self._pending and self._caught_up  # a replay delivers messages of any age
        since = datetime.fromtimestamp(self._delivered_at / NANOSECONDS, UTC) if is_known else None
        return FollowLag(messages=self._pending, since=since)

    async def _session(self, connection: Connection) -> str:
        name = f"{self.link.access.service}-{token_hex(4)}"
        try:
            return await self._with_consumer(connection, name)
        finally:
            await _forget(connection, name)

    async def _with_consumer(self, connection: Connection, name: str) -> str:
        consumer = await create_or_update_consumer(connection, self._config(name))
        # Read the stream after creating the consumer. If the stream is replaced in between, the consumer is
        # gone and the pull fails. In the other order, messages could be attributed to the wrong stream.
        stream = await fetch_stream_info(connection)
        self.on_stream_info(stream)
        self._expected, self._pending = 1, consumer.num_pending
        self.follower.start_replay(
            StreamPosition(stream_id=stream.created, last_sequence=stream.state.last_seq)
        )
        if consumer.num_pending == 0:
            self._catch_up()
        pull = PullSubscription(
            connection,
            name,
            timing=self.link.timing,
            stream=self.stream,
            stream_id=stream.created,
            room=lambda: _BATCH,
            deliver=self._deliver,
            idle=self._catch_up,  # nothing to deliver: the pending messages were delivered, or have expired
        )
        try:
            return await pull.run()
        finally:
            await pull.stop()

    def _config(self, name: str) -> dict[str, object]:
        return {
            "name": name,
            "deliver_policy": "last_per_subject",
            "filter_subject": self.filter_subject,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(self.link.timing.follower_kept * NANOSECONDS),
        }

    def _deliver(self, raw: WireMessage) -> None:
        delivery = parse_delivery(raw)
        if delivery.consumer_sequence != self._expected:
            raise BusError(f"delivery {self._expected} lost: received {delivery.consumer_sequence}")
        self._expected += 1
        self._pending, self._delivered_at = delivery.pending, delivery.at_nanoseconds
        if not self.exclude(raw.subject):
            self.follower.apply(decode_message(raw, delivery))
        # Only "nothing pending" proves that the replay is complete. A subject published after its start comes
        # after any sequence noted then, so reaching that sequence proves nothing about it.
        if delivery.pending == 0:
            self._catch_up()

    def _catch_up(self) -> None:
        self._pending = 0
        if self._caught_up:
            self.follower.mark_caught_up()
        else:
            self._caught_up = True
            self.follower.finish_replay()


async def _forget(connection: Connection, name: str) -> None:
    """Delete the consumer if the connection is open; otherwise the server deletes it after a while."""
    if connection.closed.done():
        return
    try:
        async with asyncio.timeout(1.0):
            await delete_consumer(connection, name)
    except NoConsumer:
        return
    except (BusError, TimeoutError):
        return  # no permission, or a busy server: inactive_threshold ends it
