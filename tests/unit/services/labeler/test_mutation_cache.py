"""The API server's last response counts until the watcher publishes the same state."""

import pytest

from libs.common.contract.node import Node
from services.labeler.core.mutation_cache import ENTRY_TTL_SECONDS, MutationCache
from tests.builders import make_node, make_node_gone, make_node_observed
from tests.manual_clock import ManualClock


def version(number: str, *, uid: str = "uid-1") -> Node:
    return make_node(resource_version=number, uid=uid)


@pytest.fixture
def answers(clock: ManualClock) -> MutationCache:
    answers = MutationCache(clock)
    answers.store(version("100"))
    return answers


@pytest.mark.parametrize(("view", "newest"), [("99", "100"), ("100", "100"), ("101", "101"), ("9", "100")])
def test_the_greater_version_is_the_newer_view(answers: MutationCache, view: str, newest: str):
    assert answers.latest(version(view)) == version(newest)


def test_an_answer_that_overtakes_a_later_one_does_not_replace_it(answers: MutationCache):
    answers.store(version("98"))
    assert answers.latest(version("99")) == version("100")


def test_an_answer_is_about_one_node_and_not_about_its_successor(answers: MutationCache):
    successor = version("50", uid="uid-2")
    assert answers.latest(successor) == successor
    answers.store(successor)
    assert answers.latest(version("49", uid="uid-2")) == successor


def test_an_answer_is_not_believed_for_ever(answers: MutationCache, clock: ManualClock):
    clock.advance(ENTRY_TTL_SECONDS + 1)
    assert answers.latest(version("99")) == version("99")
    answers.store(version("98"))  # the server's word now, though it has gone back
    assert answers.latest(version("97")) == version("98")


@pytest.mark.parametrize(
    "told",
    [make_node_observed(version("100")), make_node_observed(version("101")), make_node_gone(version("100"))],
)
def test_nothing_is_kept_of_what_the_watcher_has_told(answers: MutationCache, told: object):
    answers.apply(told)
    assert not answers._entries


def test_an_older_observation_leaves_the_answer(answers: MutationCache):
    answers.apply(make_node_observed(version("99")))
    assert answers.latest(version("99")) == version("100")
