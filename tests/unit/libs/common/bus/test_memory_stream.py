"""The stream and the bus in memory: age, backlogs, and events that readers share."""

import asyncio
from datetime import timedelta

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.memory.stream import DurableState, Stream, subject_matcher
from libs.common.bus.protocol import UnreadablePayload, WrongLastSequence
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract.events import encode
from libs.common.contract.subjects import subject_of
from tests.builders import NOW, make_node, make_node_observed
from tests.bus_actors import MAX_BYTES, NODES, Recorder, make_event, wait_until

MAX_AGE_SECONDS = MAX_MESSAGE_AGE.total_seconds()


class World:
    """A stream and the time."""

    def __init__(self) -> None:
        self.stream = Stream("created")
        self.now = 100.0

    def say(self, subject: str, *, expected: int | None = None, ttl: float | None = None) -> int:
        return self.stream.publish(
            subject,
            make_event(),
            payload_bytes=2,
            headers={},
            expected_sequence=expected,
            ttl_seconds=ttl,
            now=self.now,
            at=NOW + timedelta(seconds=self.now),
        )

    def last(self, subject: str) -> int:
        stored = self.stream.get_last(subject, self.now)
        return stored.sequence if stored else 0


def test_a_durable_that_nobody_consumes_keeps_no_more_than_the_stream_does():
    world = World()
    unused = world.stream.open_backlog("a.>")
    for number in range(50):
        world.say(f"a.{number}", ttl=10 if number % 7 == 0 else None)
        world.now += MAX_AGE_SECONDS / 10
    assert len(unused._waiting) <= 11
    assert (taken := unused.take(world.now)) is not None
    assert taken.subject == "a.41"


@pytest.mark.parametrize(
    ("filter_subject", "subject", "named"),
    [
        *(("a.b.>", subject, True) for subject in ("a.b.c", "a.b.c.d")),
        *(("a.b.>", subject, False) for subject in ("a.b", "a.b.", "a.bc.d")),
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        *(("a.*.b.>", subject, True) for subject in ("a.x.b.c", "a.x.b.c.d")),
        *(("a.*.b.>", subject, False) for subject in ("a.x.b", "a.b.b", "a.x.y.b.c", "ac.x.b.c")),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
    ],
)
def test_a_filter_names_what_lies_below_it(filter_subject: str, subject: str, named: bool):
    assert subject_matcher(filter_subject)(subject) is named


SUBJECTS = st.sampled_from(["a.x", "a.y", "a.z", "b.x"])


class AgainstATable(RuleBasedStateMachine):
    """The last of each subject is there until its time is over, and is handed out until it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.work = DurableState()
        self.work.provision(self.world.stream, "a.>")
        self.held: dict[str, tuple[int, float]] = {}  # subject -> sequence, and when its time is over
        self.done: set[int] = set()

    def alive(self) -> dict[str, int]:
        return {subject: n for subject, (n, over) in self.held.items() if over > self.world.now}

    @rule(subject=SUBJECTS, ttl=st.none() | st.integers(1, 20))
    def say(self, subject: str, ttl: int | None) -> None:
        over = self.world.now + (MAX_AGE_SECONDS if ttl is None else ttl)
        self.held[subject] = (self.world.say(subject, ttl=ttl), over)

    @rule(subject=SUBJECTS, beside=st.integers(-3, 3))
    def expect(self, subject: str, beside: int) -> None:
        last = self.alive().get(subject, 0)
        if beside:
            with pytest.raises(WrongLastSequence):
                self.world.say(subject, expected=last + beside)
        else:
            sequence = self.world.say(subject, expected=last)
            self.held[subject] = (sequence, self.world.now + MAX_AGE_SECONDS)

    @rule(park=st.none() | st.floats(min_value=0, max_value=100))
    def take(self, park: float | None) -> None:
        taken = self.work.take(self.world.now)
        if taken is None:
            return
        stored, _ = taken
        assert self.alive()[stored.subject] == stored.sequence
        assert stored.sequence not in self.done
        if park is None:
            self.done.add(stored.sequence)
        else:
            self.work.requeue(stored, self.world.now + park)

    @rule(seconds=st.floats(min_value=0, max_value=1000))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @invariant()
    def the_stream_is_as_the_table_says(self) -> None:
        alive = self.alive()
        assert {subject: self.world.last(subject) for subject in self.held} == {
            subject: alive.get(subject, 0) for subject in self.held
        }
        assert (self.world.stream.bytes > 0) is bool(alive)

    def teardown(self) -> None:
        """All that is not done is handed out in the end; what is parked, when its time has come."""
        handed: set[int] = set()
        while (taken := self.work.take(self.world.now)) or self.work.next_due() is not None:
            if taken:
                handed.add(taken[0].sequence)
            else:
                self.world.now = max(self.world.now, self.work.next_due() or 0.0)
        owed = {n for subject, n in self.alive().items() if subject.startswith("a.")} - self.done
        assert handed >= owed


TestAgainstATable = AgainstATable.TestCase


# ---- the bus


async def test_whoever_stops_following_is_not_fed_any_more():
    server = MemoryServer()
    bus = MemoryBus(server)
    await bus.provision((), max_bytes=MAX_BYTES)
    task = asyncio.create_task(bus.follow("test", NODES.filter, Recorder()))
    await wait_until(lambda: server.stream is not None and len(server.stream._backlogs) == 1)
    task.cancel()
    await asyncio.wait([task])
    assert server.stream is not None
    assert server.stream._backlogs == []


async def test_readers_share_the_event_of_the_publisher():
    bus = MemoryBus(MemoryServer())
    await bus.provision((), max_bytes=MAX_BYTES)
    event = make_node_observed(make_node(labels={"zone": "a"}))
    await bus.publish(event)
    first, second = [await bus.get_last(subject_of(event)) for _ in range(2)]
    assert first is not None
    assert first is second
    assert first.event is event


async def test_readers_receive_what_the_payload_of_the_event_contains():
    bus = MemoryBus(MemoryServer())
    await bus.provision((), max_bytes=MAX_BYTES)
    naive = msgspec.structs.replace(make_node_observed(make_node()), observed_at=NOW.replace(tzinfo=None))
    await bus.publish(naive)
    last = await bus.get_last(subject_of(naive))
    assert last is not None
    assert isinstance(last.event, UnreadablePayload)
    assert last.event.payload == encode(naive)
