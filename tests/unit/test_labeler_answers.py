"""What the API server answered is believed until the watcher tells as much, and no longer."""

import pytest

from libs.common.node import Node
from services.labeler.answers import BELIEVED_SECONDS, Answers
from tests.builders import a_node, gone, observed
from tests.turned_clock import TurnedClock


def version(number: str, *, uid: str = "uid-1") -> Node:
    return a_node(resource_version=number, uid=uid)


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def answers(clock: TurnedClock) -> Answers:
    answers = Answers(clock)
    answers.keep(version("100"))
    return answers


@pytest.mark.parametrize(("view", "newest"), [("99", "100"), ("100", "100"), ("101", "101"), ("9", "100")])
def test_the_greater_version_is_the_newer_view(answers: Answers, view: str, newest: str):
    assert answers.newest(version(view)) == version(newest)


def test_an_answer_that_overtakes_a_later_one_does_not_replace_it(answers: Answers):
    answers.keep(version("98"))
    assert answers.newest(version("99")) == version("100")


def test_an_answer_is_about_one_node_and_not_about_its_successor(answers: Answers):
    successor = version("50", uid="uid-2")
    assert answers.newest(successor) == successor
    answers.keep(successor)
    assert answers.newest(version("49", uid="uid-2")) == successor


def test_an_answer_is_not_believed_for_ever(answers: Answers, clock: TurnedClock):
    clock.turn(BELIEVED_SECONDS + 1)
    assert answers.newest(version("99")) == version("99")
    answers.keep(version("98"))  # the server's word now, though it has gone back
    assert answers.newest(version("97")) == version("98")


@pytest.mark.parametrize("told", [observed(version("100")), observed(version("101")), gone(version("100"))])
def test_nothing_is_kept_of_what_the_watcher_has_told(answers: Answers, told: object):
    answers.heard(told)
    assert not answers._answers


def test_an_older_observation_leaves_the_answer(answers: Answers):
    answers.heard(observed(version("99")))
    assert answers.newest(version("99")) == version("100")
