"""The trace of an answer, and the age of an observation when work on it starts."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from libs.common.observability import metrics
from services.metadata.core.object_state import Observation
from services.metadata.enrichment_publisher import LatencyRecorder, TraceContext
from tests.builders import NOW, make_message, make_node, make_node_observed


def newest(trace_headers: Mapping[str, str] | None = None, *, is_answered: bool = False) -> Observation[Any]:
    event = make_node_observed(make_node())
    return Observation(event=event, sequence=1, trace_headers=trace_headers or {}, is_answered=is_answered)


FIRST, SECOND, THIRD = ({"traceparent": f"00-{n}-1-01"} for n in "123")


def test_an_answer_belongs_to_the_trace_of_its_observation():
    assert TraceContext().parent_and_links(newest(FIRST)) == (FIRST, ())
    assert TraceContext().parent_and_links(newest()) == ({}, ()), "without a trace the answer starts one"


def test_a_later_message_is_linked_to_the_answered_observation():
    assert TraceContext().parent_and_links(newest(FIRST, is_answered=True)) == (None, (FIRST,))
    assert TraceContext().parent_and_links(newest(is_answered=True)) == (None, ())


def test_an_answer_to_several_observations_is_linked_to_the_older_ones():
    journey = TraceContext()
    journey.observe(newest(FIRST))
    journey.observe(newest(SECOND))
    journey.observe(newest(SECOND))
    assert journey.parent_and_links(newest(THIRD)) == (THIRD, (FIRST, SECOND))
    journey.observe(newest(THIRD, is_answered=True))
    assert journey.parent_and_links(newest(FIRST)) == (FIRST, ())


def test_the_number_of_links_is_limited():
    journey = TraceContext()
    for n in range(100):
        journey.observe(newest({"traceparent": str(n)}))
    parent, links = journey.parent_and_links(newest(THIRD))
    assert parent == THIRD
    assert [link["traceparent"] for link in links] == [str(n) for n in range(92, 100)]


def test_only_live_observations_are_measured_and_each_once():
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
