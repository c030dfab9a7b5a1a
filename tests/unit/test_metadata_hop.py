"""In which trace an answer stands, and how old an observation is when work on it begins."""

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from libs.common import metrics
from services.metadata.hop import Hop, Journey
from tests.builders import NOW, a_message, a_node, observed


class Newest(msgspec.Struct, frozen=True):
    headers: Mapping[str, str] = {}
    answered: bool = False


FIRST, SECOND, THIRD = ({"traceparent": f"00-{n}-1-01"} for n in "123")


def test_an_answer_stands_in_the_trace_of_what_it_answers():
    assert Journey().of(Newest(FIRST)) == (FIRST, ())
    assert Journey().of(Newest()) == ({}, ()), "no trace: it begins one"


def test_what_is_said_later_is_linked_to_what_was_answered():
    assert Journey().of(Newest(FIRST, answered=True)) == (None, (FIRST,))
    assert Journey().of(Newest(answered=True)) == (None, ())


def test_one_answer_to_several_observations_stands_in_the_newest_and_is_linked_to_the_others():
    journey = Journey()
    journey.observe(Newest(FIRST))
    journey.observe(Newest(SECOND))
    journey.observe(Newest(SECOND))
    assert journey.of(Newest(THIRD)) == (THIRD, (FIRST, SECOND))
    journey.observe(Newest(THIRD, answered=True))
    assert journey.of(Newest(FIRST)) == (FIRST, ())


def test_however_many_were_never_answered_few_are_named():
    journey = Journey()
    for n in range(100):
        journey.observe(Newest({"traceparent": str(n)}))
    parent, links = journey.of(Newest(THIRD))
    assert parent == THIRD
    assert [link["traceparent"] for link in links] == [str(n) for n in range(92, 100)]


def test_an_observation_is_measured_once_and_what_was_not_heard_live_never():
    def count() -> float:
        labels = {"service": "metadata", "event": "NodeObserved"}
        return metrics.REGISTRY.get_sample_value("talosccm_hop_latency_seconds_count", labels) or 0.0

    hop, before = Hop(lambda: NOW + timedelta(seconds=2)), count()
    hop.begun()
    assert count() == before
    hop.heard(a_message(observed(a_node())))
    hop.begun()
    hop.begun()
    assert count() == before + 1
