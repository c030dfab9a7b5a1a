"""Consumes a durable: pulls as many messages as handlers can take, extends their deadlines, acknowledges."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec

from libs.common.bus.delivery import Ack, Disposition, Nak, Reject
from libs.common.bus.nats.client import WireMessage
from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.connection_supervisor import ConnectionSupervisor
from libs.common.bus.nats.current_stream import CurrentStream
from libs.common.bus.nats.jetstream import (
    NANOSECONDS,
    NoConsumer,
    decode_message,
    fetch_consumer_info,
    fetch_stream_info,
    parse_delivery,
)
from libs.common.bus.nats.pull_subscription import PullSubscription
from libs.common.bus.protocol import BusError, Message, MessageHandler, NoStream
from libs.common.clocks import loop_time
from libs.common.contract.services import Durable

log = logging.getLogger(__name__)
_CANCEL_SECONDS: Final = 2.0
_ACK: Final = b"+ACK"
_NAK: Final = b"-NAK"
_IN_PROGRESS: Final = b"+WPI"
# A new stream starts again at sequence 1, so only sequence and time together identify a message.
_Key = tuple[int, int]


@dataclass(eq=False)
class ConsumeLoop:
    """One `consume` call."""

    link: ConnectionSupervisor
    durable: Durable
    handle: MessageHandler
    _: KW_ONLY
    in_flight: int
    bound: Callable[[], None]
    stream: CurrentStream

    def __post_init__(self) -> None:
        self._handling: dict[_Key, asyncio.Task[None]] = {}
        # Consumer and reply subject of the last delivery; a redelivery has a new reply subject.
        self._replies: dict[_Key, tuple[str | None, str]] = {}
        self._consumer: str | None = None  # creation time of the consumer while this loop pulls from it
        self._pulls = asyncio.Event()  # set while `_consumer` is known, and at the end
        self._closing = False
        self._pull: PullSubscription | None = None
        self.problem = "not bound yet"

    async def run(self) -> None:
        """Consume until cancelled; then finish or return the messages."""
        marks = asyncio.create_task(self._mark_progress())
        try:
            await self._bind_repeatedly()
        finally:
            self._closing = True
            self._pulls.set()
            try:
                await self._finish()
            finally:
                rest = [marks, *self._handling.values()]
                for task in rest:
                    task.cancel()
                await asyncio.wait(rest, timeout=_CANCEL_SECONDS)

    async def _bind_repeatedly(self) -> None:
        attempt, cap = 0, self.link.timing.consumer_retry_cap
        while True:
            began = float("inf")
            try:
                connection = await self.link.wait_for_connection()
                began = loop_time()
                reason = await self._pull_from(connection)
            except (NoConsumer, NoStream):
                reason = "does not exist yet, the watcher provisions it"
            except BusError as error:
                reason = str(error)
            self._consumer = None
            self._pulls.clear()
            self.problem = f"consumer {self.durable.name}: {reason}"
            is_stable = loop_time() - began > cap  # a binding that ends at once is a failure
            attempt = 1 if is_stable else attempt + 1
            log.warning(
                "consuming stopped, will retry", extra={"durable": self.durable.name, "reason": reason}
            )
            await asyncio.sleep(self.link.backoff(attempt, cap))

    async def _pull_from(self, connection: Connection) -> str:
        """Consume until this binding ends; return the reason."""
        # The present stream, read before its consumer: the last known ID may be that of a former stream. Its
        # replacement would end this binding, and the server would wait for the messages that it is sending.
        stream_id = (await fetch_stream_info(connection)).created
        self.stream.record(stream_id)
        self._consumer = (await fetch_consumer_info(connection, self.durable.name)).created
        self._pulls.set()
        self.problem = ""
        self.bound()
        self._pull = PullSubscription(
            connection,
            self.durable.name,
            timing=self.link.timing,
            stream=self.stream,
            stream_id=stream_id,
            room=lambda: self.in_flight - len(self._handling),
            deliver=self._deliver,
        )
        reason = await self._pull.run()
        await self._pull.stop()
        return reason

    def _deliver(self, raw: WireMessage) -> None:
        delivery = parse_delivery(raw)
        key = (delivery.sequence, delivery.at_nanoseconds)
        if key in self._handling:
            self._replies[key] = (self._consumer, raw.reply)  # in-progress acknowledgements were late
        elif self._closing:
            self._handling[key] = asyncio.create_task(self._return(key, raw.reply))
        else:
            message = decode_message(raw, delivery)
            self._replies[key] = (self._consumer, raw.reply)
            self._handling[key] = asyncio.create_task(self._handle_one(key, message))

    async def _handle_one(self, key: _Key, message: Message) -> None:
        try:
            verdict = await self.handle(message)
            await self._acknowledge(key, _settlement(verdict))
        except asyncio.CancelledError:
            await self._acknowledge(key, _NAK)
            raise
        finally:
            self._done(key)

    async def _acknowledge(self, key: _Key, settlement: bytes) -> None:
        """Settle with the consumer that delivered the message; with another one, do nothing.

        The consumer of a new stream has the same name, and its sequences begin again. It would settle another
        message, whose retry would then be lost.
        """
        await self._pulls.wait()
        consumer, reply = self._replies[key]
        if consumer == self._consumer:
            await self._send(reply, settlement)
        else:
            log.info("acknowledgement not sent", extra={"reason": "the consumer was replaced"})

    async def _return(self, key: _Key, reply: str) -> None:
        await self._send(reply, _NAK)
        self._done(key)

    async def _send(self, reply: str, settlement: bytes) -> None:
        try:
            await self.link.send(reply, settlement)
        except BusError as error:
            # No loss: the server delivers the message again after ack_wait.
            log.info("acknowledgement not sent", extra={"reason": str(error)})

    def _done(self, key: _Key) -> None:
        self._replies.pop(key, None)
        self._handling.pop(key, None)
        if self._pull is not None:
            self._pull.request_more()

    async def _mark_progress(self) -> None:
        while True:
            await asyncio.sleep(self.durable.ack_wait_seconds / 3)
            for consumer, reply in tuple(self._replies.values()):
                if consumer == self._consumer:
                    await self._send(reply, _IN_PROGRESS)

    async def _finish(self) -> None:
        if self._pull is not None:
            await self._pull.drain()
        if self._handling:
            await asyncio.wait(self._handling.values(), timeout=self.link.timing.finish_handlers)


def _settlement(verdict: Disposition) -> bytes:
    match verdict:
        case Ack() | Reject():
            return _ACK
        case Nak():
            delay = max(0, int(verdict.delay_seconds * NANOSECONDS))
            return _NAK + b" " + msgspec.json.encode({"delay": delay}) if delay else _NAK
