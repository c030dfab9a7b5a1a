"""Who takes part in a bus test: a follower that records, a worker that consumes; and patience that ends."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from libs.common.bus.delivery import Ack, Disposition
from libs.common.bus.protocol import Bus, Message, StreamPosition
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import EnrichedNodeGone, Leading
from libs.common.contract.service_spec import Durable
from libs.common.contract.subjects import ENRICHED_NODE, LEADING

NODES = Durable(service="labeler", name="labeler-nodes", filter=f"{ENRICHED_NODE}.>")
_POLL_SECONDS = 0.01
MAX_BYTES = 64 * 1024 * 1024
NATS = pytest.param("nats", marks=pytest.mark.real_servers)  # of a fixture that stands for each bus


def make_event(
    name: str = "web-1", *, order: int = 1, stream_id: str = "", uid: str = "uid-1"
) -> EnrichedNodeGone:
    """The smallest event that has a name and a place in an order."""
    return EnrichedNodeGone(stream_id=stream_id, observed_sequence=order, name=name, uid=uid)


class FlowFollower(Protocol):
    """A service that follows the flow."""

    _stream_cache: StreamCache

    def problems(self) -> tuple[str, ...]: ...


async def wait_until_ready(service: FlowFollower, bus: Bus) -> None:
    """Until it is; a leader that there was before it came is heard live meanwhile."""
    await wait_until_led(service, bus)
    await wait_until(lambda: not service.problems(), f"{type(service).__name__} is ready")


async def wait_until_led(service: FlowFollower, bus: Bus) -> None:
    """Until it has heard the leader, if there is one: what was said before it followed does not count.

    Whatever is said here has been heard at the end: a test that turns its clock next hears no more of it.
    """
    said = 0

    async def hears() -> bool:
        nonlocal said
        last, table = await bus.get_last(LEADING), service._stream_cache
        if last is None or not isinstance(last.event, Leading):
            return True
        if table.sequence < said and table.stream_id == last.event.stream_id:
            return False
        if (
            said
            and table.stream_id == last.event.stream_id
            and table.seconds_since_leader_heartbeat() is not None
        ):
            return True
        said = await bus.publish(last.event)
        return False

    await wait_until(hears, f"{type(service).__name__} hears the leader")


async def wait_until(
    condition: Callable[[], bool | Awaitable[bool]], what: str = "", seconds: float = 30.0
) -> None:
    """Poll until the condition holds; AssertionError at the deadline, far off: machines are busy.

    A condition that asks a server or a process is polled less often the longer the wait and the poll take.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        answer, asked, pause = condition(), clock(), _POLL_SECONDS
        if inspect.isawaitable(answer):
            answer = await answer
            pause = max(pause, min((asked - began) / 20, 0.2), min(clock() - asked, 1.0))
        if answer:
            return
        assert clock() - began < seconds, f"not within {seconds:g} s: {what or condition}"
        await asyncio.sleep(pause)


@asynccontextmanager
async def run_during(work: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """Run it beside the block; cancelled and awaited at its end, an error of its own comes out."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(result, Exception):
        raise result


class Recorder:
    """A follower that remembers all it is told."""

    def __init__(self) -> None:
        self.opened: list[StreamPosition] = []
        self.messages: list[Message] = []  # since the last begin
        self.replay_count = 0
        self.is_caught_up = False
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
