"""Old never replaces new."""

import itertools
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.ordering import Recency, compare_events
from tests.builders import (
    NOW,
    STREAM_ID,
    make_cluster_networks,
    make_facts,
    make_leading,
    make_node,
    make_node_enriched,
    make_node_gone,
    make_node_observed,
)

OTHER = "2020-01-01T00:00:00Z"


def an_observation(stream_id: str, epoch: int, version: int):
    return make_node_observed(make_node(resource_version=str(version)), stream_id=stream_id, epoch=epoch)


EVENTS = st.builds(an_observation, st.sampled_from([STREAM_ID, OTHER]), st.integers(1, 3), st.integers(1, 3))


@given(EVENTS, EVENTS)
def test_of_two_messages_at_most_one_is_newer(one, other):
    outcomes = {compare_events(one, other, STREAM_ID), compare_events(other, one, STREAM_ID)}
    assert outcomes in ({Recency.NEWER, Recency.OLDER}, {Recency.SAME}, {Recency.OLDER})


@given(st.lists(EVENTS, min_size=1, max_size=4))
def test_the_stream_ends_with_the_same_message_whatever_the_order_of_arrival(messages):
    def last_after(arrivals):
        held = None
        for message in arrivals:
            if compare_events(message, held, STREAM_ID) is Recency.NEWER:
                held = message
        return held and (held.order.epoch, held.order.resource_version)

    assert len({last_after(order) for order in itertools.permutations(messages)}) == 1


def test_a_greater_epoch_wins_over_a_greater_resource_version():
    assert (
        compare_events(an_observation(STREAM_ID, 2, 5), an_observation(STREAM_ID, 1, 9), STREAM_ID)
        is Recency.NEWER
    )


def test_a_message_of_another_stream_id_loses_whatever_its_order():
    foreign, present = an_observation(OTHER, 9, 9), an_observation(STREAM_ID, 1, 1)
    assert compare_events(present, foreign, STREAM_ID) is Recency.NEWER
    assert compare_events(foreign, present, STREAM_ID) is Recency.OLDER
    assert compare_events(foreign, None, STREAM_ID) is Recency.OLDER


def test_an_empty_subject_takes_everything_of_the_present_stream_id():
    assert compare_events(make_node_gone(make_node()), None, STREAM_ID) is Recency.NEWER


def test_enrichments_are_ordered_by_the_observation_that_they_enrich():
    older, newer = (make_node_enriched(make_node(), make_facts(), observed_sequence=n) for n in (3, 4))
    assert compare_events(newer, older, STREAM_ID) is Recency.NEWER
    assert compare_events(older, newer, STREAM_ID) is Recency.OLDER
    assert compare_events(older, older, STREAM_ID) is Recency.SAME


def test_a_former_leader_loses_to_its_successor():
    assert compare_events(make_leading(epoch=1), make_leading(epoch=2), STREAM_ID) is Recency.OLDER


def test_of_two_answers_about_the_cluster_networks_the_one_that_was_asked_for_later_stands():
    older, newer = (make_cluster_networks(observed_at=NOW + timedelta(microseconds=n)) for n in (0, 1))
    assert compare_events(newer, older, STREAM_ID) is Recency.NEWER
    assert compare_events(older, newer, STREAM_ID) is Recency.OLDER
    assert compare_events(older, older, STREAM_ID) is Recency.SAME
