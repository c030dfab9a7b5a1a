"""A continuous pull: keeps pull requests open, and detects a silent server."""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import msgspec
from nats.aio.subscription import Subscription

from libs.common.bus.nats.client import WireMessage
from libs.common.bus.nats.connection import NO_RESPONDERS, Connection
from libs.common.bus.nats.connection_supervisor import Timeouts
from libs.common.bus.nats.current_stream import CurrentStream
from libs.common.bus.nats.jetstream import API, NANOSECONDS
from libs.common.bus.protocol import BusError
from libs.common.clocks import loop_time
from libs.common.contract.subjects import STREAM

_HEARTBEAT: Final = "100"
_EXPIRED: Final = ("404", "408")  # a pull request has ended; another one follows
# Descriptions of other ends of a pull request, after which another one follows, too.
_DONE: Final = ("Batch Completed", "Message Size Exceeds MaxBytes")
# The server closes a connection that is 64 MiB behind. Two requests can be open, and an event is far smaller.
_MAX_PULL_BYTES: Final = 16 * 1024 * 1024


@dataclass(eq=False)
class PullSubscription:
    """Pulls up to `room()` messages from one consumer until it fails or is stopped.

    `deliver` receives each message; `idle` is called when the server has none. An exception of `deliver`
    ends the pull, and `run` raises it. So does another stream in the place of the one with `stream_id`: the
    server may drop our pull with the old stream without an error. While `room()` is 0 no pull is open.
    """

    connection: Connection
    consumer: str
    _: KW_ONLY
    timing: Timeouts
    stream: CurrentStream
    stream_id: str
    room: Callable[[], int]
    deliver: Callable[[WireMessage], None]
    idle: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._outstanding = 0
        self._heard_at = 0.0
        self._inbox: Subscription | None = None
        self._refill = asyncio.Event()
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> str:
        """Pull until consumer, stream or connection is gone; return the reason. Stop or drain afterwards."""
        self._inbox = await self.connection.open_inbox(self._on_message)
        requests = asyncio.create_task(self._keep_asking(self._inbox.subject))
        watches = [asyncio.create_task(self._watch_silence()), asyncio.create_task(self._watch_stream())]
        try:
            ends: set[asyncio.Future[Any]] = {self._ended, self.connection.closed, requests}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (requests, *watches):
                task.cancel()
            results = await asyncio.gather(requests, *watches, return_exceptions=True)
        for result in results:
            if isinstance(result, BusError):
                return str(result)
            if isinstance(result, Exception):
                raise result
        return self._ended.result() if self._ended.done() else self.connection.closed.result()

    def request_more(self) -> None:
        """Pull more, because `room()` has grown."""
        self._refill.set()

    async def drain(self) -> None:
        """Pull no more; deliver what the server had already sent."""
        if self._inbox is not None:
            await self.connection.drain(self._inbox)

    async def stop(self) -> None:
        """Pull no more; drop what the server had already sent."""
        if self._inbox is not None:
            await self.connection.unsubscribe(self._inbox)

    async def _keep_asking(self, inbox: str) -> None:
        subject = f"{API}.CONSUMER.MSG.NEXT.{STREAM}.{self.consumer}"
        limits = {
            "expires": int(self.timing.pull_expires * NANOSECONDS),
            "idle_heartbeat": int(self.timing.pull_heartbeat * NANOSECONDS),
            "max_bytes": _MAX_PULL_BYTES,
        }
        while True:
            room = self.room()
            wanted = room - self._outstanding
            # Refill at half: one request then fetches many messages, and the server always has an open one.
            if wanted > 0 and self._outstanding <= room // 2:
                if self._outstanding == 0:
                    self._heard_at = loop_time()  # no heartbeat was due before
                self._outstanding += wanted
                payload = msgspec.json.encode({"batch": wanted, **limits})
                await self.connection.send(subject, payload, reply=inbox)
            await self._refill.wait()
            self._refill.clear()

    async def _watch_silence(self) -> None:
        while not self._ended.done():
            await asyncio.sleep(self.timing.pull_silence / 5)
            if self._outstanding and loop_time() - self._heard_at > self.timing.pull_silence:
                self._end(f"no heartbeat for {self.timing.pull_silence:g} s")

    async def _watch_stream(self) -> None:
        await self.stream.wait_until_replaced(self.stream_id)
        self._end("the stream was replaced")

    def _on_message(self, raw: WireMessage) -> None:
        if self._ended.done():
            return
        self._heard_at = loop_time()
        try:
            if raw.status and not raw.data:
                self._on_status(raw)
            else:
                self._outstanding = max(0, self._outstanding - 1)
                self.deliver(raw)
        except Exception as error:  # noqa: BLE001 - a defect of `deliver`: raised by run(), not only logged by nats-py
            if not self._ended.done():
                self._ended.set_exception(error)
        if self._outstanding <= self.room() // 2:
            self._refill.set()

    def _on_status(self, raw: WireMessage) -> None:
        if raw.status == _HEARTBEAT:
            self.idle()
        elif raw.status in _EXPIRED or raw.description in _DONE:
            unserved = int(raw.headers.get("Nats-Pending-Messages", "0"))
            self._outstanding = max(0, self._outstanding - unserved)
        elif raw.status == NO_RESPONDERS:
            self._end("no responders to a pull: the stream or the consumer is gone")
        else:
            self._end(f"the server ended the pull: {raw.description or raw.status}")

    def _end(self, reason: str) -> None:
        """Make `run()` return this reason, unless it has another one already."""
        if not self._ended.done():
            self._ended.set_result(reason)
