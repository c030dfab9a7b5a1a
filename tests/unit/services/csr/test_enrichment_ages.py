"""The age of an enriched request is never smaller than it is, whatever the clocks do."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.bus.protocol import Message
from libs.common.contract.events import EnrichedCsrGone, Event
from services.csr.core.metadata_reports import EnrichmentAges
from tests.builders import (
    NOW,
    STREAM_ID,
    make_csr_enriched,
    make_message,
    make_node,
    make_node_observed,
    make_request,
)

ENRICHED = make_csr_enriched(make_request())
OTHER = make_node_observed(make_node())


def message(event: Event, sequence: int, stamp: float) -> Message:
    taken = make_message(event, sequence=sequence)
    return msgspec.structs.replace(taken, published_at=NOW + timedelta(seconds=stamp))


@pytest.fixture
def ages() -> EnrichmentAges:
    return EnrichmentAges()


def test_what_came_live_is_as_old_as_we_have_known_it(ages):
    enriched = message(ENRICHED, 1, 0)
    ages.apply(enriched, now=50, is_live=True)
    assert ages.age_seconds(enriched, 60) == 10


@pytest.mark.parametrize(
    ("stamp", "is_live", "later", "asked_at", "age"),
    [
        pytest.param(0, False, (900, 50), 57, 907, id="what was there before is as old as the stamps say"),
        # We were stopped, and all that came meanwhile is received in one go.
        pytest.param(0, True, (900, 50), 50, 900, id="what was received late is no younger for that"),
        pytest.param(0, True, (3600, 51), 51, 3600, id="a clock that jumps ahead makes it older"),
        pytest.param(3600, True, (0, 80), 90, 40, id="after a clock went back our own clock counts"),
        pytest.param(
            10, False, (9.5, 50), 52, 2, id="clocks that differ by less than a second change nothing"
        ),
    ],
)
def test_a_later_message_tells_the_age(stamp, is_live, later, asked_at, age):
    """`later` is the stamp of another message, and when we received it."""
    ages, enriched = EnrichmentAges(), message(ENRICHED, 1, stamp)
    ages.apply(enriched, now=50, is_live=is_live)
    later_stamp, received_at = later
    ages.apply(message(OTHER, 2, later_stamp), now=received_at, is_live=True)
    assert ages.age_seconds(enriched, asked_at) == age


def test_after_a_clock_went_back_nobody_knows_the_age_of_what_was_there_before(ages):
    enriched = message(ENRICHED, 1, 0)
    ages.apply(enriched, now=50, is_live=False)
    ages.apply(message(OTHER, 2, 3600), now=50, is_live=False)
    ages.apply(message(OTHER, 3, 60), now=50, is_live=True)
    assert ages.age_seconds(enriched, 50) is None
    again = message(ENRICHED, 4, 61)
    ages.apply(again, now=51, is_live=True)
    assert ages.age_seconds(again, 60) == 9
    assert ages.age_seconds(enriched, 60) is None, "it is another message by now"


def test_reading_the_stream_again_makes_nothing_younger(ages):
    enriched = message(ENRICHED, 1, 0)
    ages.apply(enriched, now=50, is_live=True)
    ages.apply(message(OTHER, 2, 5), now=55, is_live=True)
    ages.apply(enriched, now=80, is_live=False)
    ages.apply(message(OTHER, 2, 5), now=80, is_live=False)
    assert ages.age_seconds(enriched, 90) == 40


def test_the_age_of_what_was_never_heard_or_is_gone_is_unknown(ages):
    enriched = message(ENRICHED, 1, 0)
    assert ages.age_seconds(enriched, 50) is None
    ages.apply(enriched, now=50, is_live=True)
    ages.forget(enriched.subject)
    assert ages.age_seconds(enriched, 50) is None
    ages.apply(enriched, now=50, is_live=True)
    gone = EnrichedCsrGone(stream_id=STREAM_ID, observed_sequence=2, name="csr-1", uid="csr-uid-1")
    ages.apply(message(gone, 2, 1), now=51, is_live=True)
    assert ages.age_seconds(enriched, 51) is None
    ages.apply(enriched, now=50, is_live=True)
    ages.clear()
    assert ages.age_seconds(enriched, 51) is None


steps = st.floats(min_value=0, max_value=1000)
offsets = st.floats(min_value=-5000, max_value=5000)


@given(st.lists(st.tuples(steps, offsets, st.booleans()), min_size=1, max_size=20), steps)
def test_what_came_live_is_never_younger_than_it_is(past, later):
    """`past`: seconds until each message, how wrong the bus's clock is then, whether it is the request."""
    ages, at, last = EnrichmentAges(), 0.0, None
    for sequence, (seconds, wrong, is_request) in enumerate(past, 1):
        at += seconds
        taken = message(ENRICHED if is_request else OTHER, sequence, at + wrong)
        ages.apply(taken, now=at, is_live=True)
        last = (taken, at) if is_request else last
    if last is not None:
        age = ages.age_seconds(last[0], at + later)
        assert age is not None
        assert age >= at + later - last[1] - 1e-3
