"""How long the stream keeps a message, and how its limit grows."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from libs.common.bus.stream_limits import (
    HEADROOM_BYTES,
    MAX_MESSAGE_AGE,
    MAX_MESSAGE_AGE_TEXT,
    MAX_REPUBLISH_INTERVAL,
    MAX_REPUBLISH_INTERVAL_TEXT,
    STREAM_STEP_BYTES,
    candidate_limits,
    grow_limit,
    has_expired,
    initial_limit,
    is_half_full,
    limit_for_bytes,
    subtract_headroom,
)

NOW = datetime(2026, 7, 31, tzinfo=UTC)


def test_the_texts_name_the_times():
    texts = {MAX_MESSAGE_AGE_TEXT: MAX_MESSAGE_AGE, MAX_REPUBLISH_INTERVAL_TEXT: MAX_REPUBLISH_INTERVAL}
    assert texts == {"an hour": timedelta(hours=1), "30 minutes": timedelta(minutes=30)}


def test_a_message_survives_one_failed_publish():
    assert not has_expired(NOW - 2 * MAX_REPUBLISH_INTERVAL, NOW)
    assert has_expired(NOW - MAX_MESSAGE_AGE - timedelta(seconds=1), NOW)


sizes = st.integers(0, 2**40)


@given(sizes)
def test_a_limit_has_room_for_what_is_needed_in_whole_steps_with_the_headroom(needed):
    limit = limit_for_bytes(needed)
    assert limit >= needed
    assert (limit + HEADROOM_BYTES) % STREAM_STEP_BYTES == 0
    assert limit < needed + STREAM_STEP_BYTES + HEADROOM_BYTES


@given(sizes, sizes)
def test_what_a_stream_holds_is_at_most_half_of_its_limit_where_the_server_has_room(limit, held):
    larger = grow_limit(limit, held)
    assert larger >= limit
    assert not is_half_full(larger, held)
    assert is_half_full(limit, held) or larger == limit


@given(sizes)
def test_a_new_stream_starts_with_one_step_or_less(wanted):
    assert initial_limit(wanted) == min(wanted, STREAM_STEP_BYTES - HEADROOM_BYTES)


@given(sizes, sizes)
def test_every_candidate_is_larger_than_the_present_limit_or_the_one_that_is_wanted(wanted, present):
    tried = [limit for limit, _ in zip(candidate_limits(wanted, present), range(100), strict=False)]
    assert tried[0] == wanted
    assert all(limit > present for limit in tried[1:])
    assert tried == sorted(tried, reverse=True)


@given(sizes)
def test_a_limit_never_includes_the_headroom_twice(limit):
    kept = subtract_headroom(limit)
    assert kept <= limit
    assert subtract_headroom(kept) == kept
    assert subtract_headroom(limit_for_bytes(limit) + HEADROOM_BYTES) == limit_for_bytes(limit)


def test_a_stream_without_limit_needs_no_more_room():
    assert not is_half_full(-1, 2**40)
