"""Old never replaces new."""

import itertools
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from libs.common.ordering import Standing, standing
from tests.builders import (
    INCARNATION,
    NOW,
    a_node,
    cluster_networks,
    enriched,
    gone,
    leading,
    observed,
    some_facts,
)

OTHER = "2020-01-01T00:00:00Z"


def an_observation(incarnation: str, epoch: int, version: int):
    return observed(a_node(resource_version=str(version)), incarnation=incarnation, epoch=epoch)


EVENTS = st.builds(
    an_observation, st.sampled_from([INCARNATION, OTHER]), st.integers(1, 3), st.integers(1, 3)
)


@given(EVENTS, EVENTS)
def test_of_two_messages_at_most_one_is_newer(one, other):
    outcomes = {standing(one, other, INCARNATION), standing(other, one, INCARNATION)}
    assert outcomes in ({Standing.NEWER, Standing.OLDER}, {Standing.SAME}, {Standing.OLDER})


@given(st.lists(EVENTS, min_size=1, max_size=4))
def test_the_stream_ends_with_the_same_message_whatever_the_order_of_arrival(messages):
    def last_after(arrivals):
        held = None
        for message in arrivals:
            if standing(message, held, INCARNATION) is Standing.NEWER:
                held = message
        return held and (held.order.epoch, held.order.resource_version)

    assert len({last_after(order) for order in itertools.permutations(messages)}) == 1


def test_a_greater_epoch_wins_over_a_greater_resource_version():
    assert (
        standing(an_observation(INCARNATION, 2, 5), an_observation(INCARNATION, 1, 9), INCARNATION)
        is Standing.NEWER
    )


def test_a_message_of_another_incarnation_loses_whatever_its_order():
    foreign, present = an_observation(OTHER, 9, 9), an_observation(INCARNATION, 1, 1)
    assert standing(present, foreign, INCARNATION) is Standing.NEWER
    assert standing(foreign, present, INCARNATION) is Standing.OLDER
    assert standing(foreign, None, INCARNATION) is Standing.OLDER


def test_an_empty_subject_takes_everything_of_the_present_incarnation():
    assert standing(gone(a_node()), None, INCARNATION) is Standing.NEWER


def test_enrichments_are_ordered_by_the_observation_that_they_enrich():
    older, newer = (enriched(a_node(), some_facts(), observed_sequence=n) for n in (3, 4))
    assert standing(newer, older, INCARNATION) is Standing.NEWER
    assert standing(older, newer, INCARNATION) is Standing.OLDER
    assert standing(older, older, INCARNATION) is Standing.SAME


def test_a_former_leader_loses_to_its_successor():
    assert standing(leading(epoch=1), leading(epoch=2), INCARNATION) is Standing.OLDER


def test_of_two_answers_about_the_cluster_networks_the_one_that_was_asked_for_later_stands():
    older, newer = (cluster_networks(observed_at=NOW + timedelta(microseconds=n)) for n in (0, 1))
    assert standing(newer, older, INCARNATION) is Standing.NEWER
    assert standing(older, newer, INCARNATION) is Standing.OLDER
    assert standing(older, older, INCARNATION) is Standing.SAME
