"""In which trace an answer stands, and how old an observation is when work on it begins."""

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from libs.common.observability import metrics
from services.metadata.latency import LatencyRecorder, TraceContext
from tests.builders import NOW, make_message, make_node, make_node_observed


class Newest(msgspec.Struct, frozen=True):
    trace_headers: Mapping[str, str] = {}
    is_answered: bool = False


FIRST, SECOND, THIRD = ({"traceparent": f"00-{n}-1-01"} for n in "123")


def test_an_answer_stands_in_the_trace_of_what_it_answers():
    assert TraceContext().parent_and_links(Newest(FIRST)) == (FIRST, ())
    assert TraceContext().parent_and_links(Newest()) == ({}, ()), "no trace: it begins one"


def test_what_is_said_later_is_linked_to_what_was_answered():
    assert TraceContext().parent_and_links(Newest(FIRST, is_answered=True)) == (None, (FIRST,))
    assert TraceContext().parent_and_links(Newest(is_answered=True)) == (None, ())


def test_one_answer_to_several_observations_stands_in_the_newest_and_is_linked_to_the_others():
    journey = TraceContext()
    journey.observe(Newest(FIRST))
    journey.observe(Newest(SECOND))
    journey.observe(Newest(SECOND))
    assert journey.parent_and_links(Newest(THIRD)) == (THIRD, (FIRST, SECOND))
    journey.observe(Newest(THIRD, is_answered=True))
    assert journey.parent_and_links(Newest(FIRST)) == (FIRST, ())


def test_however_many_were_never_answered_few_are_named():
    journey = TraceContext()
    for n in range(100):
        journey.observe(Newest({"traceparent": str(n)}))
    parent, links = journey.parent_and_links(Newest(THIRD))
    assert parent == THIRD
    assert [link["traceparent"] for link in links] == [str(n) for n in range(92, 100)]


def test_an_observation_is_measured_once_and_what_was_not_heard_live_never():
    def count() -> float:
        labels = {"service": "metadata", "event": "NodeObserved"}
        return metrics.REGISTRY.get_sample_value("talosccm_hop_latency_seconds_count", labels) or 0.0

    hop, before = LatencyRecorder(lambda: NOW + timedelta(seconds=2)), count()
    hop.record_started()
    assert count() == before
    hop.record_received(make_message(make_node_observed(make_node())))
    hop.record_started()
    hop.record_started()
    assert count() == before + 1
