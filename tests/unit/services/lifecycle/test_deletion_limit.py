"""How many deletions an hour takes, and what the record of them says."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.lifecycle.deletion_limit import (
    WINDOW,
    BudgetDenial,
    BudgetGrant,
    Deletion,
    decode_deletions,
    encode_deletions,
    grant_deletion,
)
from tests.builders import NOW


@given(st.lists(st.floats(-7200, 7200), max_size=40), st.integers(0, 12))
def test_no_hour_sees_more_than_the_most(seconds: list[float], most: int):
    record: tuple[Deletion, ...] = ()
    done: list[Deletion] = []
    for number, offset in enumerate(sorted(seconds)):
        now = NOW + timedelta(seconds=offset)
        judged = grant_deletion(record, f"web-{number}", limit=most, now=now)
        if isinstance(judged, BudgetGrant):
            record = judged.deletions
            done.append(record[-1])
            assert sum(timedelta() <= now - one.at < WINDOW for one in done) <= most
    assert len(record) <= most


def test_a_deletion_counts_for_an_hour_and_one_that_is_yet_to_come_as_well():
    before = Deletion(node="a", at=NOW - timedelta(minutes=59))
    to_come = Deletion(node="b", at=NOW + timedelta(days=1))
    judged = grant_deletion((before, to_come), "c", limit=2, now=NOW)
    assert isinstance(judged, BudgetDenial)
    assert judged.reason == (
        "2 in the last hour, --lifecycle-max-deletions-per-hour is 2; none before 12:01:00Z"
    )
    later = grant_deletion((before, to_come), "c", limit=2, now=NOW + timedelta(minutes=1))
    assert later == BudgetGrant(deletions=(to_come, Deletion(node="c", at=NOW + timedelta(minutes=1))))


def test_with_a_cap_of_nothing_nothing_is_ever_deleted():
    assert isinstance(grant_deletion((), "a", limit=0, now=NOW), BudgetDenial)


def test_the_record_says_who_and_when_and_is_read_again():
    record = (Deletion(node="web-1", at=NOW),)
    text = encode_deletions(record)
    assert text == '[{"node":"web-1","at":"2026-03-01T12:00:00Z"}]'
    assert decode_deletions(text) == record
    assert decode_deletions("") == ()


@pytest.mark.parametrize(
    "text",
    ["nonsense", "{}", "[1]", '[{"node":"a"}]', '[{"node":"a","at":"2026-03-01T12:00:00"}]', "[" * 99999],
)
def test_a_record_that_cannot_be_read_leaves_no_room(text: str):
    assert isinstance(decode_deletions(text), BudgetDenial)
