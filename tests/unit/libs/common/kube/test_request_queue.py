"""The next request for a connection: urgent ones first, and none overtaken for longer than two seconds."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.kube.request_queue import MAX_OVERTAKING_SECONDS, RequestQueue
from tests.bus_actors import wait_until
from tests.clocks import ManualClock


class Requests:
    """Requests at one queue: each occupies its slot until it is ended."""

    def __init__(self, slots: int) -> None:
        self.clock = ManualClock()
        self.queue = RequestQueue(slots, clock=self.clock)
        self.started: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, name: str, *, is_urgent: bool = False) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._run(name, is_urgent))
        await asyncio.sleep(0)  # it takes a slot or waits

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.tasks[name]

    async def end_all(self) -> list[str]:
        """End each request once it has started; return the order in which they started."""
        ended: set[str] = set()
        while len(ended) < len(self.tasks):
            await wait_until(lambda: any(name not in ended for name in self.started), "a started request")
            for name in [name for name in self.started if name not in ended]:
                ended.add(name)
                await self.end(name)
        return self.started

    async def _run(self, name: str, is_urgent: bool) -> None:
        async with self.queue.slot(is_urgent=is_urgent):
            self.started.append(name)
            await self.ends[name].wait()


@pytest.mark.parametrize(
    ("waited", "first"), [(MAX_OVERTAKING_SECONDS - 0.1, "taint"), (MAX_OVERTAKING_SECONDS, "approval")]
)
async def test_a_request_that_has_waited_two_seconds_is_overtaken_no_longer(waited: float, first: str):
    requests = Requests(slots=1)
    await requests.add("busy")
    await requests.add("approval")
    requests.clock.advance(0.1)
    await requests.add("taint", is_urgent=True)
    requests.clock.advance(waited - 0.1)
    assert (await requests.end_all())[1] == first


async def test_a_long_wait_goes_before_no_urgent_request_that_came_earlier():
    requests = Requests(slots=1)
    await requests.add("busy")
    await requests.add("taint", is_urgent=True)
    requests.clock.advance(0.1)
    await requests.add("approval")
    requests.clock.advance(60.0)
    assert await requests.end_all() == ["busy", "taint", "approval"]


async def test_a_request_that_gives_up_when_its_turn_comes_passes_it_on():
    requests = Requests(slots=1)
    await requests.add("busy")
    await requests.add("gives-up")
    await requests.add("next")
    requests.ends["busy"].set()
    await asyncio.sleep(0)
    assert "gives-up" not in requests.started, "it has the slot, and its task has not run yet"
    requests.tasks["gives-up"].cancel()
    await asyncio.gather(requests.tasks.pop("gives-up"), return_exceptions=True)
    await wait_until(lambda: "next" in requests.started, "the next request")
    del requests.tasks["busy"]
    await requests.end("next")


async def test_a_closed_queue_holds_nobody():
    requests = Requests(slots=1)
    await requests.add("busy")
    await requests.add("waiting")
    requests.queue.close()
    await wait_until(lambda: "waiting" in requests.started, "the waiting request")
    await requests.add("later")
    assert requests.started == ["busy", "waiting", "later"]
    await requests.end_all()


Step = tuple[str, bool, float]


@given(
    slots=st.integers(1, 3),
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "end", "cancel"]), st.booleans(), st.floats(0.0, 3.0)), max_size=40
    ),
)
def test_no_slot_is_lost_or_used_twice_and_no_wait_is_longer_than_in_order(slots: int, steps: list[Step]):
    async def play() -> None:
        requests = Requests(slots)
        came: dict[str, tuple[float, bool]] = {}
        for number, (what, is_urgent, seconds) in enumerate(steps):
            requests.clock.advance(seconds)
            running = [n for n in requests.started if not requests.tasks[n].done()]
            waiting = [n for n in came if n not in requests.started and not requests.tasks[n].done()]
            if what == "add":
                came[str(number)] = (requests.clock(), is_urgent)
                await requests.add(str(number), is_urgent=is_urgent)
            elif what == "end" and running:
                await requests.end(running[0])
                await settle()
                check_next(requests, waiting, came)
            elif what == "cancel" and waiting:
                requests.tasks[waiting[-1]].cancel()
                await asyncio.gather(requests.tasks[waiting[-1]], return_exceptions=True)
            active = [n for n in requests.started if not requests.tasks[n].done()]
            left = [n for n in came if n not in requests.started and not requests.tasks[n].done()]
            assert len(active) <= slots
            assert len(active) == slots or not left
        for name in list(requests.tasks):
            requests.tasks[name].cancel()
        await asyncio.gather(*requests.tasks.values(), return_exceptions=True)

    asyncio.run(play())


def check_next(requests: Requests, waiting: list[str], came: dict[str, tuple[float, bool]]) -> None:
    """The request that started is the first urgent one, unless an earlier one has waited too long."""
    if not waiting:
        return
    oldest = min(waiting, key=lambda name: (came[name][0], int(name)))
    urgent = [name for name in waiting if came[name][1]]
    first_urgent = urgent[0] if urgent else oldest
    is_before = came[oldest][0] < came[first_urgent][0]
    has_waited = requests.clock() - came[oldest][0] >= MAX_OVERTAKING_SECONDS
    assert requests.started[-1] == (oldest if has_waited and is_before else first_urgent)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)
