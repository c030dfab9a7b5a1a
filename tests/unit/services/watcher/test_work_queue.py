"""One publish per name at a time, then a cooldown; a round ends when all its items are published."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.watcher.core.work_queue import SETTLING_SECONDS, WorkItem, WorkQueue, compute_cooldown

NAMES = ["a", "b", "c", "d"]
LATER = 100.0  # seconds: after every delay and cooldown


def make_queue(in_flight: int = 8, **options: Any) -> WorkQueue:
    return WorkQueue(in_flight=in_flight, max_cooldown_seconds=8.0, **options)


def test_names_are_served_in_the_order_of_their_news():
    agenda = make_queue(in_flight=2)
    for name in ("b", "a", "c"):
        agenda.add(name)
    assert [agenda.get(), agenda.get(), agenda.get()] == [WorkItem("b", False), WorkItem("a", False), None]
    agenda.done("a")
    assert agenda.get() == WorkItem("c", False)


def a_queue_with_a_in_flight() -> WorkQueue:
    agenda = make_queue()
    agenda.add("a")
    agenda.get()
    return agenda


def test_a_failed_errand_keeps_its_round_open_and_comes_back_as_it_was():
    agenda = make_queue()
    agenda.start_round({"a"})
    agenda.get()
    assert agenda.count_failure("a") == 1
    agenda.retry_at("a", 2.0)
    agenda.end_delays(1.9)
    assert agenda.get() is None
    assert agenda.next_due == 2.0
    agenda.end_delays(2.0)
    assert agenda.get() == WorkItem("a", True)
    assert agenda.count_failure("a") == 2
    agenda.retry_at("a", 4.0)
    assert not agenda.is_round_complete
    agenda.add("a")  # news do not wait for the back-off
    assert agenda.get() == WorkItem("a", True)
    agenda.done("a")
    agenda.end_delays(LATER)
    assert agenda.get() is None


def test_a_name_that_was_said_rests_and_its_news_go_once_afterwards():
    agenda = a_queue_with_a_in_flight()
    agenda.add("a")  # while it is in flight
    agenda.done("a", published_at=0.0)
    agenda.add("a")  # and while it rests
    agenda.end_delays(0.9)
    assert agenda.get() is None
    assert agenda.pending_count == 1
    agenda.end_delays(LATER)
    assert agenda.get() == WorkItem("a", False)
    agenda.done("a", published_at=LATER)
    agenda.end_delays(2 * LATER)
    assert agenda.get() is None
    assert agenda.next_due is None


def test_a_settling_object_waits_a_second_more_or_for_the_end_of_its_changes():
    settling = {"a"}
    agenda = make_queue(is_settling=settling.__contains__)
    for published_at in (0.0, LATER):
        agenda.add("a")
        agenda.get()
        agenda.done("a", published_at=published_at)
        agenda.add("a")
        over = published_at + compute_cooldown(1, at_most=8.0)
        agenda.end_delays(over)
        agenda.add("a")
        assert agenda.get() is None
        if published_at:
            settling.clear()
            agenda.add("a")
        else:
            agenda.end_delays(over + SETTLING_SECONDS)
        assert agenda.get() == WorkItem("a", False)
        agenda.done("a")


def test_a_change_of_a_settling_object_waits_for_the_next_one_but_no_longer_than_a_cooldown():
    settling = {"a"}
    agenda = make_queue(is_settling=settling.__contains__)
    agenda.add_change("b", 0.0)
    assert agenda.get() == WorkItem("b", False), "it does not settle"
    for begins_at in (0.0, LATER):
        agenda.add_change("a", begins_at)
        agenda.add_change("a", begins_at + 0.5)
        assert agenda.get() is None
        assert agenda.next_due == begins_at + compute_cooldown(0, at_most=8.0)
        if begins_at:
            settling.clear()
            agenda.add_change("a", begins_at + 0.6)
        else:
            agenda.end_delays(LATER)
        assert agenda.get() == WorkItem("a", False)
        agenda.done("a")


def test_a_change_in_process_or_in_cooldown_is_no_second_wait():
    agenda = make_queue(is_settling=lambda name: True)
    agenda.add("a")
    agenda.get()
    agenda.add_change("a", 0.0)
    agenda.done("a", published_at=0.0)
    agenda.add_change("a", 0.5)
    agenda.end_delays(LATER)
    agenda.end_delays(LATER + SETTLING_SECONDS)
    assert agenda.get() == WorkItem("a", False)
    agenda.done("a")
    assert agenda.pending_count == 0


def test_a_delayed_name_is_queued_once_at_its_first_time_or_by_its_next_change():
    agenda = make_queue()
    agenda.add_delayed("a", 5.0)
    agenda.add_delayed("a", 6.0)
    agenda.add_delayed("b", 5.0)
    agenda.add("b")
    assert [agenda.get(), agenda.get()] == [WorkItem("b", False), None]
    agenda.end_delays(5.0)
    agenda.end_delays(LATER)
    assert [agenda.get(), agenda.get()] == [WorkItem("a", False), None]


def test_one_node_rests_a_second_and_thousands_no_longer_than_eight():
    assert compute_cooldown(1, at_most=8.0) < 1.01
    assert 6.0 < compute_cooldown(700, at_most=8.0) < compute_cooldown(800, at_most=8.0)
    assert compute_cooldown(1001, at_most=8.0) == compute_cooldown(100_000, at_most=8.0) == 8.0


class AgendaMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: no name flies twice, no wish is lost, `anyway` is not forgotten."""

    def __init__(self):
        super().__init__()
        self.agenda = make_queue(in_flight=2)
        self.now = 0.0
        self.flying: dict[str, bool] = {}
        self.parked: set[str] = set()
        self.resting: set[str] = set()
        self.owed: dict[str, bool] = {}  # wishes that no flight has begun for
        self.round: set[str] = set()

    def _owe(self, name: str, anyway: bool) -> None:
        self.owed[name] = self.owed.get(name, False) or anyway

    @rule(name=st.sampled_from(NAMES), anyway=st.booleans())
    def want(self, name, anyway):
        self.agenda.add(name, force=anyway)
        self._owe(name, anyway)
        if anyway:
            self.resting.discard(name)
        if name not in self.resting:
            self.parked.discard(name)

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def begin_round(self, names):
        self.agenda.start_round(names)
        self.round = set(names)
        self.parked.clear()
        self.resting -= names
        for name in names:
            self._owe(name, True)

    @rule()
    def take(self):
        errand = self.agenda.get()
        if errand is None:
            waits = self.flying.keys() | self.parked | self.resting
            assert len(self.flying) == 2 or not (self.owed.keys() - waits)
            return
        assert errand.name not in self.flying
        assert errand.name not in self.parked
        assert errand.name not in self.resting
        assert self.owed.pop(errand.name) == errand.force
        self.flying[errand.name] = errand.force

    @rule(data=st.data())
    def settle(self, data):
        if not self.flying:
            return
        name = data.draw(st.sampled_from(sorted(self.flying)))
        was_anyway = self.flying.pop(name)
        if data.draw(st.booleans()):
            rests = data.draw(st.booleans())
            self.agenda.done(name, published_at=self.now if rests else None)
            if not self.owed.get(name, False):
                self.round.discard(name)
                self.resting |= {name} if rests else set()
        else:
            self.agenda.count_failure(name)
            self.agenda.retry_at(name, self.now + 1.0)
            self.parked.add(name)
            self._owe(name, was_anyway)

    @rule()
    def wait(self):
        self.now += LATER
        self.agenda.end_delays(self.now)
        self.resting.clear()
        self.parked.clear()

    @invariant()
    def the_round_is_as_complete_as_it_says(self):
        assert self.agenda.is_round_complete == (not self.round)

    @invariant()
    def nothing_is_lost(self):
        assert self.agenda.pending_count == len(self.owed)


TestAgendaMachine = AgendaMachine.TestCase
TestAgendaMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
