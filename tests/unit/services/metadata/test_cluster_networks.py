"""Which answer about the cluster's networks stands, and what is said of it."""

from datetime import timedelta

from libs.common.contract.ordering import Recency, compare_events
from libs.talos.machine_reading import MachineConfigNetworks
from services.metadata.cluster_networks_poller import (
    build_observed,
    build_publication,
    has_same_networks,
    select_later,
)
from tests.builders import NOW, STREAM_ID, make_cluster_networks

ANSWER = MachineConfigNetworks(
    pod_cidrs=("10.0.0.0/16",), service_cidrs=("10.96.0.0/12",), node_cidr_mask_size_ipv4=25
)
SECOND = timedelta(seconds=1)


def test_an_answer_is_said_to_the_present_stream_with_all_that_it_holds():
    event = build_publication(build_observed(ANSWER, queried_at=NOW, known=None), STREAM_ID)
    assert event is not None
    assert (event.stream_id, event.observed_at) == (STREAM_ID, NOW)
    assert (event.pod_cidrs, event.service_cidrs) == (ANSWER.pod_cidrs, ANSWER.service_cidrs)
    assert (event.node_cidr_mask_size_ipv4, event.node_cidr_mask_size_ipv6) == (25, None)


def test_nothing_is_said_before_anything_is_known_or_of_no_stream():
    assert build_publication(None, STREAM_ID) is None
    assert build_publication(make_cluster_networks(), "") is None


def test_an_answer_stands_above_what_was_known_when_it_was_asked_for_even_if_the_clock_was_set_back():
    known = make_cluster_networks(observed_at=NOW)
    for asked_at in (NOW - 9 * SECOND, NOW, NOW + SECOND):
        event = build_publication(build_observed(ANSWER, queried_at=asked_at, known=known), STREAM_ID)
        assert event is not None
        assert compare_events(event, known, STREAM_ID) is Recency.NEWER


def test_of_two_that_are_known_the_later_one_stands_and_one_is_better_than_none():
    older, newer = make_cluster_networks(observed_at=NOW), make_cluster_networks(observed_at=NOW + SECOND)
    assert select_later(older, newer) is select_later(newer, older) is newer
    assert select_later(None, older) is select_later(older, None) is older
    assert select_later(None, None) is None


def test_stream_and_time_make_no_difference_to_consumers_and_networks_do():
    one = make_cluster_networks()
    assert has_same_networks(one, make_cluster_networks(stream_id="another", observed_at=NOW + SECOND))
    assert not has_same_networks(one, make_cluster_networks(service_cidrs=()))
