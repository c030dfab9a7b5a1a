"""The bus of a process that a test pauses, and whose replies a test loses."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from libs.common.bus.delivery import Disposition
from libs.common.bus.memory.bus import MemoryBus
from libs.common.bus.protocol import BusError, Follower, Message, StreamPosition
from libs.common.contract.events import Event
from libs.common.contract.services import Durable

ReplyT = TypeVar("ReplyT")


class FaultyBus:
    """A memory bus. While paused, nothing leaves and nothing arrives; everything does when it resumes.

    A message that its process has begun to publish leaves then, even if the process has ended.
    """

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self._running = asyncio.Event()
        self._running.set()
        self._followers: list[HeldFollower] = []
        self._sending: set[asyncio.Task[Any]] = set()
        self.lost_replies = 0  # how many of the next replies get lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()
        for follower in self._followers:
            follower.deliver_held()

    async def reach(self) -> None:
        """Return once the process runs."""
        await self._running.wait()

    async def close_at_end(self) -> None:
        """Drop the messages that have not left."""
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def publish(self, event: Event, **options: Any) -> int:
        return await self.send(
            lambda: self._bus.publish(event, **options), BusError("the acknowledgement was lost")
        )

    async def send(self, request: Callable[[], Awaitable[ReplyT]], error_if_lost: Exception) -> ReplyT:
        """Send a request of this process, to NATS or another server."""
        sending = asyncio.create_task(self._send(request, error_if_lost))
        self._sending.add(sending)
        sending.add_done_callback(self._forget)
        return await asyncio.shield(sending)

    def _forget(self, sent: asyncio.Task[Any]) -> None:
        self._sending.discard(sent)
        if not sent.cancelled():
            sent.exception()  # its process may have ended, so nothing else reads it

    async def _send(self, request: Callable[[], Awaitable[ReplyT]], error_if_lost: Exception) -> ReplyT:
        await self._running.wait()
        reply = await request()
        await self._running.wait()
        if self.lost_replies:
            self.lost_replies -= 1
            raise error_if_lost
        return reply

    async def get_last(self, subject: str) -> Message | None:
        await self._running.wait()
        return await self._bus.get_last(subject)

    async def consume(
        self, durable: Durable, handle: Callable[[Message], Awaitable[Disposition]], *, in_flight: int
    ) -> None:
        async def handle_while_running(message: Message) -> Disposition:
            await self._running.wait()
            return await handle(message)

        await self._bus.consume(durable, handle_while_running, in_flight=in_flight)

    async def follow(self, name: str, filter_subject: str, follower: Follower, **options: Any) -> None:
        held = HeldFollower(follower, self._running)
        self._followers.append(held)
        try:
            await self._bus.follow(name, filter_subject, held, **options)
        finally:
            self._followers.remove(held)


class HeldFollower:
    """Passes each call on, in order, once the process runs."""

    def __init__(self, follower: Follower, running: asyncio.Event) -> None:
        self._follower = follower
        self._running = running
        self._held: list[Callable[[], None]] = []

    def deliver_held(self) -> None:
        held, self._held = self._held, []
        for call in held:
            call()

    def start_replay(self, position: StreamPosition) -> None:
        self._pass_on(lambda: self._follower.start_replay(position))

    def apply(self, message: Message) -> None:
        self._pass_on(lambda: self._follower.apply(message))

    def finish_replay(self) -> None:
        self._pass_on(self._follower.finish_replay)

    def mark_caught_up(self) -> None:
        self._pass_on(self._follower.mark_caught_up)

    def mark_disconnected(self, reason: str) -> None:
        self._pass_on(lambda: self._follower.mark_disconnected(reason))

    def _pass_on(self, call: Callable[[], None]) -> None:
        if self._running.is_set():
            call()
        else:
            self._held.append(call)
