"""Participants of a bus test: a follower that records and a worker that consumes; waits with a deadline."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, TypeVar

import pytest

from libs.common.bus.delivery import Ack, Disposition
from libs.common.bus.flow import Flow
from libs.common.bus.protocol import Bus, Message, StreamFull, StreamPosition
from libs.common.contract.events import EnrichedNodeGone, Leading
from libs.common.contract.services import Durable
from libs.common.contract.subjects import ENRICHED_NODE, LEADING
from libs.testbed.child_process import HANG_SECONDS

NODES = Durable(service="labeler", name="labeler-nodes", filter=f"{ENRICHED_NODE}.>")
_POLL_SECONDS = 0.01
MAX_BYTES = 64 * 1024 * 1024
Value = TypeVar("Value")
NATS = pytest.param("nats", marks=pytest.mark.real_servers)  # the parameter of a fixture for each bus


def make_event(
    name: str = "web-1", *, order: int = 1, stream_id: str = "", uid: str = "uid-1"
) -> EnrichedNodeGone:
    """The smallest event that has a name and an order."""
    return EnrichedNodeGone(stream_id=stream_id, observed_sequence=order, name=name, uid=uid)


async def publish_with_headroom(leading: Leading, leader: Bus, *, other: Bus) -> None:
    """Publish a Leading to a full stream, which accepts it and nothing larger, and only with the headroom."""
    with pytest.raises(StreamFull):
        await leader.publish(leading, ttl_seconds=10)
    async with leader.headroom(leading):
        with pytest.raises(StreamFull):
            await other.publish(make_event("large", uid="u" * 1_000))
        await leader.publish(leading, ttl_seconds=10)


BusT = TypeVar("BusT", bound=Bus)


async def provisioned(bus: BusT) -> BusT:
    """The same bus, with a stream and the durable NODES."""
    await bus.provision((NODES,), max_bytes=MAX_BYTES)
    return bus


class FlowFollower(Protocol):
    """A service that follows the flow."""

    _flow: Flow

    def problems(self) -> tuple[str, ...]: ...


async def wait_until_ready(service: FlowFollower, bus: Bus) -> None:
    """Wait until the service is ready; a leader that exists is published to it meanwhile."""
    await wait_until_led(service, bus)
    await wait_until(lambda: not service.problems(), f"{type(service).__name__} is ready")


async def wait_until_led(service: FlowFollower, bus: Bus) -> None:
    """Wait until the service received the leader live, if there is one: a replayed heartbeat does not count.

    Each heartbeat published here is received before the end: none follows when the test advances its clock.
    """
    published = 0

    async def is_led() -> bool:
        nonlocal published
        last, table = await bus.get_last(LEADING), service._flow.cache
        if last is None or not isinstance(last.event, Leading):
            return True
        if table.sequence < published and table.stream_id == last.event.stream_id:
            return False
        if (
            published
            and table.stream_id == last.event.stream_id
            and table.seconds_since_leader_heartbeat() is not None
        ):
            return True
        published = await bus.publish(last.event)
        return False

    await wait_until(is_led, f"{type(service).__name__} knows the leader")


async def wait_until(
    condition: Callable[[], bool | Awaitable[bool]], what: str = "", seconds: float = HANG_SECONDS
) -> None:
    """Poll until the condition holds; AssertionError at the deadline.

    A condition that takes long, such as one that reads a log, is polled less often. So is an awaitable one,
    which queries a server or a process, the longer it is waited for.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        started, answer = clock(), condition()
        pause = max(_POLL_SECONDS, min(20 * (clock() - started), 0.2))
        if inspect.isawaitable(answer):
            asked, answer = clock(), await answer
            pause = max(pause, min((asked - began) / 20, 0.2), min(clock() - asked, 1.0))
        if answer:
            return
        assert clock() - began < seconds, f"not within {seconds:g} s: {what or condition}"
        await asyncio.sleep(pause)


async def wait_for_value(
    get: Callable[[], Awaitable[Value | None]],
    accepts: Callable[[Value], object] = lambda value: True,
    what: str = "",
    seconds: float = HANG_SECONDS,
) -> Value:
    """The value, once there is one that `accepts`; AssertionError at the deadline."""
    found: list[Value] = []

    async def is_there() -> bool:
        value = await get()
        if value is None or not accepts(value):
            return False
        found.append(value)
        return True

    await wait_until(is_there, what, seconds)
    return found[0]


@asynccontextmanager
async def run_during(work: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """Run `work` during the block, then cancel and await it; its error is raised."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(result, Exception):
        raise result


class Recorder:
    """A follower that records every call."""

    def __init__(self) -> None:
        self.opened: list[StreamPosition] = []
        self.messages: list[Message] = []  # since the last replay began
        self.replay_count = 0
        self.is_caught_up = False
        self.caught_up_with = 0  # messages, when nothing was pending after the replay
        self.disconnects: list[str] = []

    def start_replay(self, position: StreamPosition) -> None:
        self.opened.append(position)
        self.messages.clear()
        self.is_caught_up = False

    def apply(self, message: Message) -> None:
        self.messages.append(message)

    def finish_replay(self) -> None:
        self.replay_count += 1
        self.is_caught_up = True

    def mark_caught_up(self) -> None:
        self.caught_up_with = len(self.messages)

    def mark_disconnected(self, reason: str) -> None:
        self.disconnects.append(reason)
        self.is_caught_up = False

    @property
    def subjects(self) -> set[str]:
        return {message.subject for message in self.messages}


class Worker:
    """A handler that records; `judge` decides, `gate` (set at first) holds handlers in flight."""

    def __init__(self, judge: Callable[[Message], Disposition] = lambda message: Ack()) -> None:
        self.judge = judge
        self.seen: list[Message] = []
        self.finished: list[Message] = []
        self.in_flight = 0
        self.max_in_flight = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def handle(self, message: Message) -> Disposition:
        self.seen.append(message)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await self.gate.wait()
            verdict = self.judge(message)
        finally:
            self.in_flight -= 1
        self.finished.append(message)
        return verdict

    def list_names(self) -> list[str]:
        """Names of the seen objects, in order."""
        return [message.subject.removeprefix(ENRICHED_NODE + ".") for message in self.seen]

    def consume(self, bus: Bus, *, durable: Durable = NODES, in_flight: int = 16) -> Any:
        """A context in which this worker consumes."""
        return run_during(bus.consume(durable, self.handle, in_flight=in_flight))


def close_at_end(
    stack: AsyncExitStack, connect: Callable[..., Awaitable[BusT]]
) -> Callable[..., Awaitable[BusT]]:
    """`connect(service=...)` of the watcher by default, whose buses are closed when `stack` closes."""

    async def connect_and_close(service: str = "watcher", **options: Any) -> BusT:
        bus = await connect(service=service, **options)
        stack.push_async_callback(bus.close)
        return bus

    return connect_and_close
