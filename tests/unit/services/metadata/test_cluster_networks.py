"""The selection and publication of the cluster's networks."""

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


def test_the_networks_are_published_to_the_present_stream_in_full():
    event = build_publication(build_observed(ANSWER, queried_at=NOW, known=None), STREAM_ID)
    assert event is not None
    assert (event.stream_id, event.observed_at) == (STREAM_ID, NOW)
    assert (event.pod_cidrs, event.service_cidrs) == (ANSWER.pod_cidrs, ANSWER.service_cidrs)
    assert (event.node_cidr_mask_size_ipv4, event.node_cidr_mask_size_ipv6) == (25, None)


def test_nothing_is_published_without_networks_or_without_a_stream():
    assert build_publication(None, STREAM_ID) is None
    assert build_publication(make_cluster_networks(), "") is None


def test_a_new_response_is_later_than_the_known_one_even_if_the_clock_was_set_back():
    known = make_cluster_networks(observed_at=NOW)
    for asked_at in (NOW - 9 * SECOND, NOW, NOW + SECOND):
        event = build_publication(build_observed(ANSWER, queried_at=asked_at, known=known), STREAM_ID)
        assert event is not None
        assert compare_events(event, known, STREAM_ID) is Recency.NEWER


def test_the_later_of_two_events_is_selected():
    older, newer = make_cluster_networks(observed_at=NOW), make_cluster_networks(observed_at=NOW + SECOND)
    assert select_later(older, newer) is select_later(newer, older) is newer
    assert select_later(None, older) is select_later(older, None) is older
    assert select_later(None, None) is None


def test_events_are_compared_by_their_networks_alone():
    one = make_cluster_networks()
    assert has_same_networks(one, make_cluster_networks(stream_id="another", observed_at=NOW + SECOND))
    assert not has_same_networks(one, make_cluster_networks(service_cidrs=()))
