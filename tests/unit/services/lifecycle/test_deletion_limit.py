"""How many deletions an hour takes, and what the record of them says."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.lifecycle.core import deletion_limit
from tests.builders import NOW

TWO = deletion_limit.DeletionLimit(per_hour=2)


@given(st.lists(st.floats(-7200, 7200), max_size=40), st.integers(0, 12))
def test_no_hour_sees_more_than_the_most(seconds: list[float], most: int):
    record: tuple[deletion_limit.Deletion, ...] = ()
    done: list[deletion_limit.Deletion] = []
    for number, offset in enumerate(sorted(seconds)):
        now = NOW + timedelta(seconds=offset)
        judged = deletion_limit.grant_deletion(
            record, f"web-{number}", limit=deletion_limit.DeletionLimit(per_hour=most), now=now
        )
        if isinstance(judged, deletion_limit.BudgetGrant):
            record = judged.deletions
            done.append(record[-1])
            assert sum(timedelta() <= now - one.at < deletion_limit.WINDOW for one in done) <= most
    assert len(record) <= most


def test_a_deletion_counts_for_an_hour_and_one_that_is_yet_to_come_as_well():
    before = deletion_limit.Deletion(node="a", at=NOW - timedelta(minutes=59))
    to_come = deletion_limit.Deletion(node="b", at=NOW + timedelta(days=1))
    judged = deletion_limit.grant_deletion((before, to_come), "c", limit=TWO, now=NOW)
    assert isinstance(judged, deletion_limit.BudgetDenial)
    assert judged.reason == (
        "2 in the last hour, --lifecycle-max-deletions-per-hour is 2; none before 12:01:00Z"
    )
    later = deletion_limit.grant_deletion((before, to_come), "c", limit=TWO, now=NOW + timedelta(minutes=1))
    assert later == deletion_limit.BudgetGrant(
        deletions=(to_come, deletion_limit.Deletion(node="c", at=NOW + timedelta(minutes=1)))
    )


def test_with_a_cap_of_nothing_nothing_is_ever_deleted():
    limit = deletion_limit.DeletionLimit(per_hour=0)
    judged = deletion_limit.grant_deletion((), "a", limit=limit, now=NOW)
    assert isinstance(judged, deletion_limit.BudgetDenial)


def test_the_pools_do_not_count_for_each_other():
    other = deletion_limit.DeletionLimit(per_hour=1, pool="a-cloud", description="the limit of a-cloud")
    record: tuple[deletion_limit.Deletion, ...] = ()
    for limit in (TWO, TWO, other):
        judged = deletion_limit.grant_deletion(record, "web", limit=limit, now=NOW)
        assert isinstance(judged, deletion_limit.BudgetGrant)
        record = judged.deletions
    for limit, reason in (
        (TWO, "2 in the last hour, --lifecycle"),
        (other, "1 in the last hour, the limit of"),
    ):
        judged = deletion_limit.grant_deletion(record, "web", limit=limit, now=NOW)
        assert isinstance(judged, deletion_limit.BudgetDenial)
        assert judged.reason.startswith(reason)
    assert deletion_limit.decode_deletions(deletion_limit.encode_deletions(record)) == record


def test_the_record_says_who_and_when_and_is_read_again():
    record = (deletion_limit.Deletion(node="web-1", at=NOW),)
    text = deletion_limit.encode_deletions(record)
    assert text == '[{"node":"web-1","at":"2026-03-01T12:00:00Z"}]'
    assert deletion_limit.decode_deletions(text) == record
    assert deletion_limit.decode_deletions("") == ()


@pytest.mark.parametrize(
    "text",
    ["nonsense", "{}", "[1]", '[{"node":"a"}]', '[{"node":"a","at":"2026-03-01T12:00:00"}]', "[" * 99999],
)
def test_a_record_that_cannot_be_read_leaves_no_room(text: str):
    assert isinstance(deletion_limit.decode_deletions(text), deletion_limit.BudgetDenial)
