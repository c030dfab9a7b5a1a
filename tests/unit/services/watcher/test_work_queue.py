"""One publish per name at a time, then a cooldown; a round ends when all its items are published."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.watcher.core.work_queue import WorkItem, WorkQueue, compute_cooldown

NAMES = ["a", "b", "c", "d"]


def test_names_are_served_in_the_order_of_their_news():
    agenda = WorkQueue(in_flight=2)
    for name in ("b", "a", "c"):
        agenda.add(name)
    assert [agenda.get(), agenda.get(), agenda.get()] == [WorkItem("b", False), WorkItem("a", False), None]
    agenda.done("a")
    assert agenda.get() == WorkItem("c", False)


def a_queue_with_a_in_flight() -> WorkQueue:
    agenda = WorkQueue(in_flight=8)
    agenda.add("a")
    agenda.get()
    return agenda


def test_a_failed_errand_keeps_its_round_open_and_comes_back_as_it_was():
    agenda = WorkQueue(in_flight=8)
    agenda.start_round({"a"})
    agenda.get()
    assert agenda.mark_failed("a") == 1
    assert agenda.get() is None
    agenda.retry("a")
    assert agenda.get() == WorkItem("a", True)
    assert agenda.mark_failed("a") == 2
    assert not agenda.is_round_complete
    agenda.add("a")  # news do not wait for the back-off
    assert agenda.get() == WorkItem("a", True)
    agenda.done("a")
    agenda.retry("a")
    assert agenda.get() is None


def test_a_new_round_does_not_wait_for_the_back_off_of_the_last_one():
    agenda = a_queue_with_a_in_flight()
    agenda.mark_failed("a")
    agenda.start_round({"b"})
    assert {agenda.get(), agenda.get()} == {WorkItem("a", False), WorkItem("b", True)}
    assert agenda.mark_failed("a") == 1


def test_a_name_that_was_said_rests_and_its_news_go_once_afterwards():
    agenda = a_queue_with_a_in_flight()
    agenda.add("a")  # while it is in flight
    agenda.done("a", cool_down=True)
    agenda.add("a")  # and while it rests
    assert agenda.get() is None
    assert agenda.pending_count == 1
    agenda.end_cooldown("a")
    assert agenda.get() == WorkItem("a", False)
    agenda.done("a", cool_down=True)
    agenda.end_cooldown("a")
    assert agenda.get() is None


def test_one_node_rests_a_second_and_thousands_no_longer_than_eight():
    assert compute_cooldown(1, at_most=8.0) < 1.01
    assert 6.0 < compute_cooldown(700, at_most=8.0) < compute_cooldown(800, at_most=8.0)
    assert compute_cooldown(1001, at_most=8.0) == compute_cooldown(100_000, at_most=8.0) == 8.0


def test_who_is_to_be_said_anyway_does_not_rest():
    agenda = a_queue_with_a_in_flight()
    agenda.done("a", cool_down=True)
    agenda.start_round({"a"})
    assert agenda.get() == WorkItem("a", True)
    agenda.add("a", force=True)
    agenda.done("a", cool_down=True)
    assert agenda.get() == WorkItem("a", True)


class AgendaMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: no name flies twice, no wish is lost, `anyway` is not forgotten."""

    def __init__(self):
        super().__init__()
        self.agenda = WorkQueue(in_flight=2)
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
            self.agenda.done(name, cool_down=rests)
            if not self.owed.get(name, False):
                self.round.discard(name)
                self.resting |= {name} if rests else set()
        else:
            self.agenda.mark_failed(name)
            self.parked.add(name)
            self._owe(name, was_anyway)

    @rule(name=st.sampled_from(NAMES))
    def rested(self, name):
        self.agenda.end_cooldown(name)
        self.resting.discard(name)

    @rule(name=st.sampled_from(NAMES))
    def retry(self, name):
        self.agenda.retry(name)
        self.parked.discard(name)

    @invariant()
    def the_round_is_as_complete_as_it_says(self):
        assert self.agenda.is_round_complete == (not self.round)

    @invariant()
    def nothing_is_lost(self):
        assert self.agenda.pending_count == len(self.owed)


TestAgendaMachine = AgendaMachine.TestCase
TestAgendaMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
