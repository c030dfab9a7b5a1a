"""How long a server has answered, and how long it has not."""

from libs.common.bus import Contact
from libs.common.nats_bus.answers import Answers
from tests.turned_clock import TurnedClock


def test_answers_count_from_the_first_one_after_a_gap():
    clock = TurnedClock()
    answers = Answers(clock)
    assert answers.contact() == Contact(silent_seconds=float("inf"), answering_seconds=0.0)
    for _ in range(6):
        answers.answered()
        clock.turn(3.0)
    assert answers.contact() == Contact(silent_seconds=3.0, answering_seconds=15.0)
    clock.turn(8.0)
    answers.answered()
    assert answers.contact() == Contact(silent_seconds=0.0, answering_seconds=0.0)
